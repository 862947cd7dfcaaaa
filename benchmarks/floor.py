"""The floor: the store's own statements through the database driver alone.

`RawConnection` gives `Statements` the one method that it calls, straight on a DBAPI cursor. What
is left out is what the library adds: SQLAlchemy's connection and pool, the engine with its
threads, messages as objects, validation, retries and the translation of errors.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
import sqlalchemy as sa

from queue_lib.stores.schema import build_tables
from queue_lib.stores.sql.dialect import Statements

P = ParamSpec("P")
T = TypeVar("T")


class RawResult:
    """What `Statements` needs of an SQLAlchemy result, over a cursor."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    @property
    def rowcount(self) -> int:
        return int(self._cursor.rowcount)

    def fetchall(self) -> list[Any]:
        return list(self._cursor.fetchall()) if self._cursor.description else []

    all = fetchall

    def first(self) -> Any:
        return self._cursor.fetchone()

    fetchone = one = one_or_none = first

    def scalar(self) -> Any:
        row = self._cursor.fetchone()
        return None if row is None else row[0]

    scalar_one = scalar_one_or_none = scalar

    def scalars(self) -> _List:
        return _List(row[0] for row in self.fetchall())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchall())


class _List(list[Any]):
    def all(self) -> list[Any]:
        return self


class RawConnection:
    """The one method of a connection that the hot statements use."""

    def __init__(self, connection: Any, dialect: sa.Dialect) -> None:
        self.connection = self
        self.driver_connection = connection
        self.dialect = dialect

    def exec_driver_sql(self, statement: str, parameters: Any = None) -> RawResult:
        cursor = self.driver_connection.cursor()
        if parameters is None:
            cursor.execute(statement)
        elif isinstance(parameters, list) and parameters and isinstance(parameters[0], tuple):
            cursor.executemany(statement, parameters)
        else:
            cursor.execute(statement, parameters)
        return RawResult(cursor)


class Floor:
    """Runs the statements of one database on one raw connection."""

    def __init__(self, url: sa.URL) -> None:
        tables = build_tables()
        self._sqlite = url.get_backend_name() == "sqlite"
        self._synchronous = ""
        self.statements: Statements
        if self._sqlite:
            from queue_lib.stores.sql.sqlite import SqliteStatements

            assert url.database is not None
            self._raw: Any = sqlite3.connect(url.database, isolation_level=None)
            self.statements = SqliteStatements(tables)
        else:
            from queue_lib.stores.sql.postgres import PostgresStatements

            dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
            self._raw = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)
            self.statements = PostgresStatements(tables)
        self._connection: Any = RawConnection(self._raw, url.get_dialect()())

    def run(
        self,
        work: Callable[Concatenate[sa.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run one operation in one transaction; durable as the store's own claims are."""
        return self._run("normal", work, *args, **kwargs)

    def run_durably(
        self,
        work: Callable[Concatenate[sa.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run one operation in one transaction; durable as the store's own publishes are."""
        return self._run("full", work, *args, **kwargs)

    def _run(self, synchronous: str, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        if not self._sqlite:
            return work(self._connection, *args, **kwargs)
        if synchronous != self._synchronous:
            self._raw.execute(f"pragma synchronous={synchronous}")
            self._synchronous = synchronous
        self._raw.execute("begin immediate")
        answer = work(self._connection, *args, **kwargs)
        self._raw.execute("commit")
        return answer

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        rows: list[Any] = self._connection.exec_driver_sql(
            statement, tuple(parameters) or None
        ).fetchall()
        return rows

    def close(self) -> None:
        self._raw.close()
