"""Stores whose statements fail one by one, as the database itself fails them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from queue_lib.stores.sql.dialect import Connection, Database, Rows

__all__ = ["FailingDatabase", "Faults"]

P = ParamSpec("P")
T = TypeVar("T")


class Faults:
    """Counts statements, and fails one of them: before it takes effect, or after."""

    def __init__(self) -> None:
        self._seen = 0
        self._fatal: int | None = None
        self._applied = False

    def statement(self, execute: Callable[[], T], fail: Callable[[], object]) -> T:
        """Let a statement pass, or have `fail` raise in its place, or behind it."""
        number = self._seen
        self._seen += 1
        if number != self._fatal:
            return execute()
        if self._applied:
            execute()
        fail()
        raise AssertionError("it should have raised")

    def count(self, work: Callable[[], object]) -> int:
        """Return how many statements something takes."""
        self._seen = 0
        work()
        return self._seen

    @contextmanager
    def at(self, number: int, *, applied: bool) -> Iterator[None]:
        """Fail that statement, counted from 0, of those to come in the block."""
        self._seen, self._fatal, self._applied = 0, number, applied
        try:
            yield
        finally:
            self._fatal = None
            assert self._seen > number, "it never came so far"


class FailingDatabase:
    """A `Database` on whose own connections statements fail."""

    def __init__(self, database: Database, faults: Faults, broken: str) -> None:
        self._database = database
        self._faults = faults
        self._broken = broken  # what the server is sent for a failure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def write(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._database.write(self._failing(work), *args, **kwargs)

    def write_durably(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._database.write_durably(self._failing(work), *args, **kwargs)

    def read(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._database.read(self._failing(work), *args, **kwargs)

    def _failing(
        self, work: Callable[Concatenate[Connection, P], T]
    ) -> Callable[Concatenate[Connection, P], T]:
        def failing(connection: Connection, /, *args: P.args, **kwargs: P.kwargs) -> T:
            proxy = _Failing(connection, self._faults, self._broken)
            return work(proxy, *args, **kwargs)

        return failing


class _Failing:
    def __init__(self, connection: Connection, faults: Faults, broken: str) -> None:
        self._connection, self._faults, self._broken = connection, faults, broken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, parameters: Any = (), /) -> Rows:
        return self._faults.statement(
            lambda: self._connection.execute(statement, parameters), self._fail
        )

    def executemany(self, statement: str, parameters: Sequence[Any], /) -> Rows:
        return self._faults.statement(
            lambda: self._connection.executemany(statement, parameters), self._fail
        )

    def _fail(self) -> None:
        self._connection.execute(self._broken).fetchall()
