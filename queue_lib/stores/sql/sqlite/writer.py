"""The connection through which one process writes, and whose turn it is.

A SQLite database has one write lock. Inside a process our writers queue for it at a lock of
Python's, which is far fairer than SQLite's sleeping; other processes are waited for with short
random pauses. Holding one connection saves each transaction a checkout, and lets ``PRAGMA
data_version`` tell the commits of others: it is blind to those of its own connection.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import uuid4

import sqlalchemy as sa

from queue_lib.errors import QueueClosedError, StoreUnavailableError
from queue_lib.logs import get_logger
from queue_lib.stores.sql.dialect import Connection
from queue_lib.stores.sql.sqlite.engines import begin_immediate, is_busy, own_engine

__all__ = ["Writer"]

P = ParamSpec("P")
T = TypeVar("T")

_log = get_logger("queue_lib.sqlite")

_JOURNAL_LIMIT = 64 << 20  # what a WAL is cut back to that a forgotten reader let grow
_COMMIT_PAUSE = 0.005

# All queues of this process that are on one file share a gate. By process, so that a forked child
# starts afresh; re-entrant, so that a fork can pass it once for each queue.
_gates: dict[tuple[int, str], threading.RLock] = {}


class Writer:
    """Write transactions, one at a time. Thread-safe."""

    def __init__(self, target: sa.Engine | sa.URL) -> None:
        self.engine = own_engine(target, self._prepare)
        sa.event.listen(self.engine, "begin", self._begin)  # the migrations of one in memory
        self.driver_error: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        self._patience = 5.0  # until the first connection tells its driver's timeout
        self._may_change_journal = isinstance(target, sa.URL)
        self._has_warned = False
        # A URI, or the nothing of an engine with a creator, is a name as well: at worst two queues
        # on one file queue at SQLite's lock instead.
        self.file = str(Path(self.engine.url.database or uuid4().hex).resolve())
        self._closed = False  # guarded by _gate
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._gate = _gates.setdefault((os.getpid(), self.file), threading.RLock())
        self._pooled: sa.PoolProxiedConnection | None = None  # guarded by _gate, as is all below
        self._driver: Any = None
        self._is_full = True
        self._data_version: int | None = None
        self._others_committed = False  # but cleared without it
        self._is_asked = False  # but set without it: whoever writes then looks

    # -- transactions ----------------------------------------------------------------------

    def run(
        self,
        durable: bool,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run `work` in a transaction that has the write lock from its first statement on.

        `durable`: the commit is on the disk, not only in the operating system.
        """
        begun = time.monotonic()
        if not self._gate.acquire(timeout=self._patience):
            raise StoreUnavailableError("database is locked: by other threads of this process")
        try:
            while True:
                try:
                    return self._attempt(begun, durable, work, *args, **kwargs)
                except self.driver_error as error:
                    # Only without WAL: somebody reads, and the COMMIT must wait for that.
                    if not is_busy(error) or time.monotonic() >= begun + self._patience:
                        raise
                time.sleep(_COMMIT_PAUSE)
        finally:
            self._gate.release()

    def _attempt(
        self,
        begun: float,
        durable: bool,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        driver = self._open()
        try:
            if durable is not self._is_full:  # not possible inside a transaction
                driver.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._is_full = durable
            begin_immediate(driver.execute, begun + self._patience - time.monotonic())
            result = work(driver, *args, **kwargs)
            driver.execute("COMMIT")
            if self._is_asked:
                self._look()
        except BaseException:
            self._drop()  # in whatever state it is
            raise
        return result

    def _begin(self, connection: sa.Connection) -> None:
        begin_immediate(connection.exec_driver_sql, self._patience)

    # -- other processes -------------------------------------------------------------------

    def others_committed(self) -> bool:
        """Say whether somebody else has committed since this was asked last. Never waits."""
        self._is_asked = True
        if self._gate.acquire(blocking=False):
            try:
                self._open()
                self._look()
            except self.driver_error as error:
                if not is_busy(error):  # without WAL, a commit of another process is under way
                    raise
            finally:
                self._gate.release()
        if not self._others_committed:
            return False
        self._others_committed = False  # first: what is committed from now on is told next time
        return True

    def _look(self) -> None:
        (version,) = self._driver.execute("PRAGMA data_version").fetchone()
        self._is_asked = False
        if version != self._data_version:
            self._data_version = version
            self._others_committed = True

    # -- the connection --------------------------------------------------------------------

    def _open(self) -> Any:
        if self._pooled is None:
            if self._closed:
                raise QueueClosedError("the store is closed")
            self._pooled = self.engine.raw_connection()
            self._driver = self._pooled.driver_connection
            self._is_full = True
            self._data_version = None  # those of two connections cannot be compared
        return self._driver

    def _drop(self) -> None:
        pooled, driver = self._pooled, self._driver
        self._pooled = self._driver = None
        if pooled is not None:
            # Closing alone is not enough: while a traceback keeps a cursor alive, SQLite keeps the
            # connection, and the connection keeps the write lock from everybody.
            with suppress(self.driver_error):
                driver.rollback()
            pooled.invalidate()
            pooled.close()

    def _prepare(self, driver: Any) -> None:
        (timeout,) = driver.execute("PRAGMA busy_timeout").fetchone()
        self._patience = timeout / 1000
        (mode,) = driver.execute("PRAGMA journal_mode").fetchone()
        if mode not in ("wal", "memory"):
            if self._may_change_journal:
                with suppress(driver.OperationalError):
                    (mode,) = driver.execute("PRAGMA journal_mode = wal").fetchone()
            if mode != "wal" and not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "journal mode of %s is %s: slower, and readers block writers; "
                    "`PRAGMA journal_mode = wal` changes it for good",
                    self.file,
                    mode,
                )
        driver.execute(f"PRAGMA journal_size_limit = {_JOURNAL_LIMIT}")
        driver.execute("PRAGMA synchronous = FULL")  # whatever the library was built with
        driver.execute("PRAGMA busy_timeout = 0")  # `begin_immediate` waits instead

    def hold(self) -> None:
        """Let nobody write until `let_go`, and have no connection open."""
        self._gate.acquire()
        self._drop()
        self.engine.dispose()

    def let_go(self, *, child: bool) -> None:
        """End a `hold`; in a forked `child`, forget what the parent's threads may have held."""
        if child:
            self.engine.dispose(close=False)
            self._begin_anew()
        else:
            self._gate.release()

    def close(self) -> None:
        """Close the connection for good. Idempotent."""
        with self._gate:
            self._closed = True
            self._drop()
            self.engine.dispose()
