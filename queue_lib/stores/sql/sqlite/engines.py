"""Engines of our own beside the host's, and what a SQLite connection needs before we use it.

The driver begins transactions by itself, late and without the write lock, in one of several ways
that the host may have chosen. Ours begin with BEGIN IMMEDIATE, on connections that the host never
sees; the host's engine stays as it is.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from queue_lib.errors import StoreError, StoreUnavailableError, UnsupportedError

__all__ = [
    "begin_immediate",
    "explained",
    "is_busy",
    "own_engine",
    "prepare_sqlite_engine",
    "primary_code",
    "unshared",
]

_RETURNING = (3, 35)  # the least release: UPDATE … RETURNING
_MEMDB = (3, 36)  # the least release for a database in memory with several connections
_LEGACY_TRANSACTION_CONTROL = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL, from Python 3.12

_ALONE = (
    "engine {}: a second connection of it would be the same one, or have a database of its own; "
    'give the queue an engine on a file, or let it open "sqlite:///:memory:" by itself'
)

_HINTS = {
    sqlite3.SQLITE_BUSY: "another connection has kept the write lock; if that is a transaction of "
    "your own, publish in it, with connection=",
    sqlite3.SQLITE_READONLY: "the file and its folder must be writable: the WAL lies beside it",
    sqlite3.SQLITE_CANTOPEN: "its folder must exist, and be writable",
}

# Retries of a lock that another process holds. SQLite's own waiting sleeps up to 100 ms and knows
# no order, so that one of several processes may starve; short random pauses share it out.
_SHORTEST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.008


def unshared(target: sa.Engine | sa.URL) -> tuple[sa.Engine | sa.URL, bool]:
    """Check that a target can give each of us a connection of its own.

    Returns the target, or the URL of a fresh database in memory in place of ``sqlite://``; and
    whether it is one.

    Raises:
        UnsupportedError: its connections would be one connection, or one empty database each.
    """
    if isinstance(target, sa.Engine):
        if isinstance(target.pool, sa.StaticPool | sa.SingletonThreadPool | sa.AssertionPool):
            raise UnsupportedError(_ALONE.format(target.url))
        return target, False
    if target.database not in (None, "", ":memory:"):
        return target, False
    # A name that nobody else can have, on connections that see one another and lock properly.
    memory = target.set(database=f"file:/queue_lib-{uuid4().hex}")
    return memory.update_query_dict({"vfs": "memdb", "uri": "true"}), True


def own_engine(
    target: sa.Engine | sa.URL, prepare: Callable[[Any], None] | None = None
) -> sa.Engine:
    """Make an engine of ours: it connects as the host's does, then prepares the connection.

    Raises:
        UnsupportedError: the SQLite library is too old.
    """
    if isinstance(target, sa.Engine):
        # Its creator, its connect arguments and its connect hooks; none of its other hooks.
        engine = sa.create_engine(target.url, pool=target.pool.recreate(), hide_parameters=True)
    else:
        engine = sa.create_engine(target, hide_parameters=True)
    found = engine.dialect.loaded_dbapi.sqlite_version_info
    needed = _MEMDB if engine.url.query.get("vfs") == "memdb" else _RETURNING
    if found < needed:
        raise UnsupportedError(
            "SQLite {}.{}: at least {}.{} is needed here".format(*found[:2], *needed)
        )

    def connect(driver: Any, _record: object) -> None:
        try:
            _begin_nothing_itself(driver)
            _check_not_alone(driver, engine.url)
            if prepare is not None:
                prepare(driver)
        except BaseException:
            driver.close()
            raise

    sa.event.listen(engine, "connect", connect)
    return engine


def begin_immediate(execute: Callable[[str], object], patience: float) -> None:
    """Take the write lock of a connection, trying for `patience` seconds."""
    give_up = time.monotonic() + patience
    longest = _SHORTEST_PAUSE * 10
    while True:
        try:
            execute("BEGIN IMMEDIATE")
        except Exception as error:
            if not is_busy(error) or time.monotonic() >= give_up:
                raise
        else:
            return
        time.sleep(random.uniform(_SHORTEST_PAUSE, longest))
        longest = min(longest * 1.2, _LONGEST_PAUSE)


def is_busy(error: BaseException) -> bool:
    """Say whether another connection is in the way: BUSY or LOCKED, with all their variants."""
    return primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def primary_code(error: BaseException) -> int:
    """Return SQLite's code of an error, without its variant; 0 if it is not SQLite's."""
    code: int = getattr(getattr(error, "orig", error), "sqlite_errorcode", 0)
    return code & 255


def explained(error: BaseException, url: sa.URL) -> StoreError | None:
    """Return our error with the file and what to do about it; `None`: nobody can say."""
    hint = _HINTS.get(primary_code(error))
    if hint is None:
        return None
    meaning = StoreUnavailableError if is_busy(error) else StoreError
    return meaning(f"{getattr(error, 'orig', error)}: {url.database}: {hint}")


def prepare_sqlite_engine(engine: sa.Engine) -> None:
    """Give a host's engine transactions that begin where SQLAlchemy says they do.

    Python's driver begins one only before the first INSERT, UPDATE or DELETE. A savepoint that
    comes first is then outside of any transaction: what was published in it is committed with the
    savepoint, whatever becomes of the outer transaction. Call this right after `create_engine`
    on engines whose connections are handed to ``publish(connection=…)``; calling again is harmless.
    """
    if not sa.event.contains(engine, "begin", _begin):
        sa.event.listen(engine, "connect", _begin_nothing_itself)
        sa.event.listen(engine, "begin", _begin)


def _begin(connection: sa.Connection) -> None:
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("BEGIN")


def _check_not_alone(driver: Any, url: sa.URL) -> None:
    (_, _, file) = driver.execute("PRAGMA database_list").fetchone()
    if not file and url.query.get("vfs") != "memdb":  # named, but newer releases do not tell
        raise UnsupportedError(_ALONE.format(url))


def _begin_nothing_itself(driver: Any, _record: object = None) -> None:
    """Turn off the driver's transactions, whichever of its two ways it was opened with."""
    if hasattr(driver, "autocommit"):
        driver.autocommit = _LEGACY_TRANSACTION_CONTROL
    driver.isolation_level = None
