"""See what a store sends: the number of its statements is its cost, on any machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from queue_lib.stores.sql.dialect import Connection, Database, Rows

__all__ = ["RecordingDatabase"]

P = ParamSpec("P")
T = TypeVar("T")


class RecordingDatabase:
    """A `Database` that keeps the texts of the statements on its own connections, in order.

    What a database does by itself to begin and to end a transaction is not among them. Give it
    to `SqlStore` in place of the database it wraps.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.statements: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def write(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """See `Database.write`."""
        return self._database.write(self._recorded(work), *args, **kwargs)

    def write_durably(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """See `Database.write_durably`."""
        return self._database.write_durably(self._recorded(work), *args, **kwargs)

    def read(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """See `Database.read`."""
        return self._database.read(self._recorded(work), *args, **kwargs)

    def _recorded(
        self, work: Callable[Concatenate[Connection, P], T]
    ) -> Callable[Concatenate[Connection, P], T]:
        def recorded(connection: Connection, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return work(_Recording(connection, self.statements), *args, **kwargs)

        return recorded


class _Recording:
    def __init__(self, connection: Connection, statements: list[str]) -> None:
        self._connection = connection
        self._statements = statements

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, parameters: Any = (), /) -> Rows:
        self._statements.append(statement)
        return self._connection.execute(statement, parameters)

    def executemany(self, statement: str, parameters: Sequence[Any], /) -> Rows:
        self._statements.append(statement)
        return self._connection.executemany(statement, parameters)
