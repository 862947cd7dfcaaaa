"""How `SQLLocker` runs its statements: connections of its own, and what the errors mean."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from queue_lib.errors import StoreError, StoreUnavailableError, UnsupportedError
from queue_lib.stores.sql.sqlite.engines import begin_immediate, is_busy, own_engine, unshared

__all__ = ["LockDatabase", "PostgresLocks", "SqliteLocks"]

T = TypeVar("T")

_CREATING = 0x716C6F63  # any number will do, as long as every release agrees on it
_PATIENCE = 0.25  # seconds for which one try waits for the writers of other processes


class LockDatabase(Protocol):
    """A database with a table of locks. Thread-safe; every error is one of ours."""

    now: sa.ColumnElement[int]
    """Its clock: microseconds since 1970, not frozen at the beginning of a statement's wait."""

    unhurried: sa.ColumnElement[bool]
    """True. In the condition of an UPDATE, its commit need not be on the disk."""

    def insert(self, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
        """Return its INSERT, which has ON CONFLICT."""
        ...

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run `work`, which only reads."""
        ...

    def write(self, work: Callable[[sa.Connection], T], *, durable: bool = False) -> T:
        """Run `work`, whose statements need no common transaction.

        `durable`: it survives a power cut, also where all processes are on the machine that has it.
        """
        ...

    def create(self, table: sa.Table) -> None:
        """Create the table unless it exists, also if others do so at the same time."""
        ...

    def before_fork(self) -> None:
        """See `ForkAware.before_fork`."""
        ...

    def after_fork(self, *, child: bool) -> None:
        """See `ForkAware.after_fork`."""
        ...

    def close(self) -> None:
        """Close the connections. Idempotent."""
        ...


class PostgresLocks:
    """On autocommit: a statement is a transaction, and the commit is in its round trip."""

    now: sa.ColumnElement[int] = sa.cast(
        sa.extract("epoch", sa.func.clock_timestamp()) * 1_000_000, sa.BigInteger
    )
    # Until the end of the statement's own transaction. Not for a renewal: if a crash of the server
    # could undo it, the lock would pass on before its holder's time.
    unhurried: sa.ColumnElement[bool] = (
        sa.func.set_config("synchronous_commit", "off", sa.true()) == "off"
    )

    def __init__(self, target: sa.Engine | sa.URL) -> None:
        from queue_lib.stores.sql.postgres.database import classify
        from queue_lib.stores.sql.postgres.database import own_engine as own_postgres_engine

        self._engine = own_postgres_engine(target)
        self._classify = classify

    def insert(self, table: sa.Table) -> postgresql.Insert:
        return postgresql.insert(table)

    def write(self, work: Callable[[sa.Connection], T], *, durable: bool = False) -> T:
        with self._translated(), self._engine.begin() as connection:
            return work(connection)

    read = write

    def create(self, table: sa.Table) -> None:
        engine = self._engine.execution_options(isolation_level="READ COMMITTED")
        with self._translated(), engine.begin() as connection:
            # CREATE TABLE IF NOT EXISTS fails in all but one of those who run it together.
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATING)))
            table.create(connection, checkfirst=True)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sa.exc.DBAPIError, sa.exc.TimeoutError, OSError) as error:
            meaning = self._classify(error)
            raise meaning(str(getattr(error, "orig", None) or error).strip()) from error

    def before_fork(self) -> None:
        """Do nothing: the child lets go of the parent's sockets."""

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._engine.dispose(close=False)

    def close(self) -> None:
        self._engine.dispose()


class SqliteLocks:
    """One operation at a time, on one connection: threads would only wait for each other anyway.

    SQLite keeps a file's locks by process: a child whose parent had a connection open would
    believe to hold them too. So none is open during a fork.
    """

    now: sa.ColumnElement[int] = (
        sa.cast(sa.func.round((sa.func.julianday("now") - 2440587.5) * 86_400_000), sa.BigInteger)
        * 1000
    )
    unhurried: sa.ColumnElement[bool] = sa.true()

    def __init__(self, target: sa.Engine | sa.URL) -> None:
        target, in_memory = unshared(target)
        if in_memory:
            raise UnsupportedError("a database in memory is not shared: use a ProcessLocker")
        self._prefers_wal = isinstance(target, sa.URL)  # not ours to change on a host's engine
        self._engine = own_engine(target, self._prepare)
        self._gate = threading.Lock()

    def insert(self, table: sa.Table) -> sqlite.Insert:
        return sqlite.insert(table)

    def _prepare(self, driver: Any) -> None:
        if self._prefers_wal:
            with suppress(driver.OperationalError):  # somebody is using the file
                driver.execute("PRAGMA journal_mode = wal")
        driver.execute("PRAGMA busy_timeout = 0")  # `begin_immediate` waits instead

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        with self._gate, self._translated(), self._engine.connect() as connection:
            return work(connection)

    def write(self, work: Callable[[sa.Connection], T], *, durable: bool = False) -> T:
        with self._gate, self._translated(), self._engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            driver.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            begin_immediate(connection.exec_driver_sql, _PATIENCE)
            result = work(connection)
            connection.commit()
            return result

    def create(self, table: sa.Table) -> None:
        self.write(lambda connection: table.create(connection, checkfirst=True), durable=True)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sa.exc.DBAPIError, sa.exc.TimeoutError, sqlite3.Error) as error:
            passing = is_busy(error) or isinstance(error, sa.exc.TimeoutError)
            meaning = StoreUnavailableError if passing else StoreError
            raise meaning(str(getattr(error, "orig", None) or error)) from error

    def before_fork(self) -> None:
        self._gate.acquire()
        self._engine.dispose()

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._gate = threading.Lock()
        else:
            self._gate.release()

    def close(self) -> None:
        with self._gate:
            self._engine.dispose()
