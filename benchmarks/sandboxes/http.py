"""The HTTP client that all HTTP backends are asked with."""

from __future__ import annotations

import aiohttp


def session(url: str) -> aiohttp.ClientSession:
    """As many connections as there are requests, kept open, and no time limit but the benchmark's own."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3600)
    return aiohttp.ClientSession(
        url, connector=connector, timeout=aiohttp.ClientTimeout(total=None)
    )
