"""Loggers that cannot do harm: what a log record costs must never be an outcome.

The host's filters and handlers run in the thread that logs. One that raises, as a request id
filter does outside of a request, would otherwise end a consumer's thread between a handler and
the writing of its outcome.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

__all__ = ["Logger", "get_logger"]


class Logger(logging.LoggerAdapter[logging.Logger]):
    """A logger that swallows what filters and handlers raise."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a record, or do without."""
        with contextlib.suppress(Exception):  # there is nobody left to tell
            super().log(level, msg, *args, stacklevel=2, **kwargs)  # the caller's line, not this


def get_logger(name: str) -> Logger:
    """Return the logger of a name. Every module here uses one of these."""
    return Logger(logging.getLogger(name))
