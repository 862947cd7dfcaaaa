"""One SQLite database: who writes, who reads, what is borrowed, and what its errors mean."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

from queue_lib.errors import (
    QueueClosedError,
    SchemaError,
    StoreError,
    StoreUnavailableError,
    UnsupportedError,
)
from queue_lib.stores.schema import Tables
from queue_lib.stores.sql.dialect import Borrowed, Connection
from queue_lib.stores.sql.sqlite.engines import (
    explained,
    is_busy,
    own_engine,
    primary_code,
    unshared,
)
from queue_lib.stores.sql.sqlite.leader import Leader
from queue_lib.stores.sql.sqlite.statements import render
from queue_lib.stores.sql.sqlite.watch import FileWatch
from queue_lib.stores.sql.sqlite.writer import Writer

__all__ = ["SqliteDatabase"]

P = ParamSpec("P")
T = TypeVar("T")

_COLUMNS = "PRAGMA table_info({})"
_LOOK_SECONDS = 0.05  # between two looks for the commits of others, 3 µs each
_GATHER_SECONDS = 0.005  # in which further commits of others join the next wake-up
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.02  # from the write of a commit to the look for it


class SqliteDatabase:
    """The `Database` of SQLite.

    Waits for other writers as long as the driver's ``timeout`` says (5 s unless the URL or the
    host's engine says otherwise), then raises `StoreUnavailableError`.
    """

    def __init__(self, target: sa.Engine | sa.URL, tables: Tables, *, wake: bool = True) -> None:
        if tables.schema is not None:
            raise UnsupportedError(f"schema {tables.schema!r}: SQLite has none; use a table prefix")
        target, self._in_memory = unshared(target)
        self._target = target
        self._tables = tables
        self._wake = wake
        self._lock_sql = render(tables)["lock"]
        self._writer = Writer(target)
        self.driver_error = self._writer.driver_error
        self._reader = own_engine(target)
        # An in-memory database lasts as long as a connection to it is open.
        self._anchor = self._reader.raw_connection() if self._in_memory else None
        if self._anchor is not None:
            self._anchor.detach()
        self._closed = False  # guarded by _idle
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._idle = threading.Condition()
        self._leader = Leader(partial(self._writer.run, True))
        self._reads = 0  # connections in use; guarded by _idle

    @property
    def engine(self) -> sa.Engine:
        """An engine of ours, each of whose transactions begins with the write lock."""
        return self._writer.engine

    @property
    def migration_target(self) -> sa.Engine | sa.URL:
        return self.engine if self._in_memory else self._target

    # -- transactions ----------------------------------------------------------------------

    def write(
        self,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        # The operating system has it. After a power cut nobody of the claims' holders is left, and
        # a lost claim or acknowledgement is a redelivery.
        try:
            return self._writer.run(False, work, *args, **kwargs)
        except self.driver_error as error:
            self._explain(error)
            raise

    def write_durably(
        self,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        try:
            result: T = self._leader.run(work, *args, **kwargs)
        except self.driver_error as error:
            self._explain(error)
            raise
        return result

    def read(
        self,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        try:
            with self._reading(), closing(self._reader.raw_connection()) as pooled:
                driver: Any = pooled.driver_connection
                return work(driver, *args, **kwargs)
        except self.driver_error as error:
            self._explain(error)
            raise

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._idle:
            if self._closed:
                raise QueueClosedError("the store is closed")
            self._reads += 1
        try:
            yield
        finally:
            with self._idle:
                self._reads -= 1
                if not self._reads:
                    self._idle.notify_all()

    def borrow(self, connection: sa.Connection) -> Connection:
        """See `Database.borrow`. Takes the write lock, for the rest of the caller's transaction."""
        if connection.dialect.name != "sqlite":
            raise UnsupportedError(
                f"connection: is to {connection.dialect.name}, the queue is on SQLite"
            )
        if not connection.in_transaction():
            connection.begin()  # as its first statement would
        driver: Any = connection.connection.driver_connection
        try:
            if driver.in_transaction:
                # Before anything is read: a transaction that reads first can only be rolled back
                # once another connection has written.
                connection.exec_driver_sql(self._lock_sql)
            elif driver.isolation_level is None or getattr(driver, "autocommit", None) is True:
                raise UnsupportedError(
                    "connection: is on autocommit, so there is no transaction to publish in"
                )
            else:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
        except sa.exc.OperationalError as error:
            if getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY_SNAPSHOT:
                raise StoreUnavailableError(
                    "the transaction has read, and another connection has written since: roll it "
                    "back and run all of it again; no other retry can help"
                ) from error
            raise
        return Borrowed(connection)

    # -- errors ----------------------------------------------------------------------------

    def classify(self, error: BaseException, borrowed: Borrowed | None = None) -> type[Exception]:
        if is_busy(error) or isinstance(error, sa.exc.TimeoutError):
            return StoreUnavailableError
        # "No such table" and "no such column" share their code with every mistake in a text.
        if primary_code(error) == sqlite3.SQLITE_ERROR and not self._has_tables(borrowed):
            return SchemaError
        return StoreError

    def _has_tables(self, borrowed: Borrowed | None) -> bool:
        def have(connection: Connection) -> bool:
            return all(
                {column.name for column in table.columns}
                <= {row[1] for row in connection.execute(_COLUMNS.format(table.name)).fetchall()}
                for table in self._tables.metadata.sorted_tables
            )

        return have(borrowed) if borrowed else self.read(have)

    def _explain(self, error: BaseException) -> None:
        """Raise an error of ours in its place, if one says more."""
        ours = explained(error, self._writer.engine.url)
        if ours is not None:
            raise ours from error

    # -- other processes -------------------------------------------------------------------

    def sender(self, *, borrowed: bool) -> str:
        return ""

    def published(self, topics: Sequence[str]) -> None:
        """Do nothing: other processes see the commit itself."""

    def listen(self, wake: Callable[[str], None], stop: threading.Event) -> None:
        if not self._wake or self._in_memory:
            raise UnsupportedError("listening is off, or there is nobody to listen to")
        # The WAL is watched. A commit is written there before it is on the disk, and counts only
        # once it is: what is heard is that one begins, ours or another's. It is looked for after a
        # moment, and then less and less often. Each that turns out to be ours makes the moment
        # longer, so that a busy publisher does not keep this thread busy, too.
        moment, until_look = _SHORTEST_PAUSE, _LOOK_SECONDS
        self._writer.others_committed()  # opens the file
        with FileWatch(Path(f"{self._writer.file}-wal")) as wal:
            self._writer.others_committed()  # before the wake, which is for all of that, and …
            wake("")  # … after the watch began: what is committed from then on is heard
            while not stop.is_set():
                was_written = wal.wait(until_look)
                if was_written:
                    stop.wait(moment)
                if self._writer.others_committed():
                    wake("")
                    stop.wait(_GATHER_SECONDS)
                    moment, until_look = _SHORTEST_PAUSE, _LOOK_SECONDS
                elif was_written:
                    moment = until_look = min(moment * 2, _LONGEST_PAUSE)
                else:
                    moment, until_look = _SHORTEST_PAUSE, min(until_look * 2, _LOOK_SECONDS)

    def before_fork(self) -> None:
        """Close every connection, and let none be opened.

        SQLite keeps the locks of a file by process: a child whose parent had a connection open
        would believe to hold them too.
        """
        self._idle.acquire()
        while self._reads:
            self._idle.wait()
        self._writer.hold()
        self._reader.dispose()

    def after_fork(self, *, child: bool) -> None:
        self._writer.let_go(child=child)
        if child:
            self._reader.dispose(close=False)
            self._begin_anew()
        else:
            self._idle.release()

    def close(self) -> None:
        with self._idle:
            self._closed = True
            while self._reads:
                self._idle.wait()
        self._writer.close()
        self._reader.dispose()
        if self._anchor is not None:
            self._anchor.close()
