"""A run that ends as Failed with a message needs no traceback of Prefect's own machinery below it."""

from __future__ import annotations

import logging

from prefect.exceptions import FailedRun

LOGGERS = ("prefect.flow_runs", "prefect.engine")


def hide_expected_failures() -> None:
    """Drop Prefect's "exited with unexpected exception" where the exception only carries a Failed state."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if _not_a_bug not in logger.filters:
            logger.addFilter(_not_a_bug)


def _not_a_bug(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], FailedRun))
