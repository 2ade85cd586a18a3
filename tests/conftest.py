"""Shared by all tests: every Prefect client of the session talks to one temporary server, started by the
first test that asks for it."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from flows import local_server

# Prefect reads these once, at its import, which may come with the import of any test module.
PREFECT_HOME = Path(tempfile.mkdtemp(prefix="rstar2-prefect-"))
PREFECT_PORT = local_server.free_port()
os.environ["PREFECT_HOME"] = str(PREFECT_HOME)
os.environ["PREFECT_API_URL"] = local_server.api_url(PREFECT_PORT)
os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"
# The log sender would go on trying for a minute after the server is gone.
os.environ["PREFECT_LOGGING_TO_API_ENABLED"] = "false"
# On a shared CPU, OpenMP threads that spin cost a factor of ten.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
# How long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[str]:
    """URL of the session's Prefect server."""
    server = local_server.start(PREFECT_PORT, PREFECT_HOME)
    try:
        local_server.wait(server, PREFECT_PORT, PREFECT_HOME)
        yield local_server.api_url(PREFECT_PORT)
    finally:
        local_server.stop(server)
