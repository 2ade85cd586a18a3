"""The HTTP client that all HTTP backends are asked with."""

from __future__ import annotations

import aiohttp

IDLE_S = 2.0  # a connection is not used again after that: uvicorn closes its own after 5 s


def session(url: str) -> aiohttp.ClientSession:
    """As many connections as there are requests, and no time limit but the benchmark's own."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S)
    return aiohttp.ClientSession(
        url, connector=connector, timeout=aiohttp.ClientTimeout(total=None)
    )
