"""What the errors of both drivers mean.

They are not SQLAlchemy's: `clickhouse_driver` raises its own, the HTTP driver a
`DatabaseException` that holds the server's text, `requests` and the sockets theirs.
"""

from __future__ import annotations

import re

import requests
from clickhouse_driver.errors import Error as DriverError
from clickhouse_sqlalchemy.exceptions import DatabaseException

from queue_lib.errors import SchemaError, StoreError, StoreUnavailableError

__all__ = [
    "DRIVER_ERRORS",
    "MISSING_TABLES",
    "RefusedError",
    "TooManyPartsError",
    "code_of",
    "translate",
]

DRIVER_ERRORS = (
    DatabaseException, DriverError, requests.RequestException, OSError, EOFError,
)  # fmt: skip

_CODE = re.compile(r"Code: (\d+)")

# VIOLATED_CONSTRAINT: only our fences are constraints. And, on a cluster, the write before this one
# is not on all replicas yet.
_REFUSED = frozenset({286, 469})
_TOO_MANY_PARTS = 252
_MISSING = frozenset({16, 47, 60, 81})  # a column, an identifier, a table, a database
# Timeouts, limits that others use up, network, replicas, keeper, shutting down.
_PASSING = frozenset(
    {159, 160, 201, 202, 203, 209, 210, 216, 225, 236, 241, 242, 243, 244, 254, 279, 285, 289,
     319, 335, 341, 394, 439, 473, 494, 503, 518, 570, 574, 585, 598, 681, 689, 700, 722, 733,
     745, 753, 999, 1000}
)  # fmt: skip

MISSING_TABLES = (
    "the queue's tables are missing or of another release: "
    "run `alembic upgrade head` or `python -m queue_lib migrate URL`"
)


class RefusedError(StoreUnavailableError):
    """The server refused a write: somebody raised the fence, or the server was restarted."""


class TooManyPartsError(StoreUnavailableError):
    """The server merges more slowly than we insert."""


def code_of(error: BaseException) -> int | None:
    """Return the server's code of an error; `None`: the server did not answer."""
    if isinstance(error, DatabaseException):
        error = error.orig
    if isinstance(error, DriverError):
        code = int(getattr(error, "code", 0) or 0)
        # The driver's own errors have codes of the server's numbering: a lost connection is 210.
        return code or None
    found = _CODE.search(str(error)[:200])  # over HTTP `code` is the status of the response
    return int(found[1]) if found else None


def translate(error: BaseException) -> StoreError:
    """Return our error for a driver's."""
    text = str(getattr(error, "orig", None) or error).strip().split("Stack trace:")[0].strip()
    code = code_of(error)
    if code in _REFUSED:
        return RefusedError(text)
    if code == _TOO_MANY_PARTS:
        return TooManyPartsError(text)
    if code in _MISSING:
        return SchemaError(f"{MISSING_TABLES} ({text})")
    if code is None or code in _PASSING:
        return StoreUnavailableError(text or type(error).__name__)
    return StoreError(text)
