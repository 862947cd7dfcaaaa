"""What a database has to bring for `SqlStore`: its statements, and how to run them.

`Statements` is the SQL of one database, each operation written once, in the order in which its
statements must run. `Database` knows connections, transactions, locks and which errors pass by
themselves. Neither knows anything about messages as objects, leases as policy, or the engine.

Instants are integer microseconds since 1970, on the database's clock. `now` is `None` in
production: the statement asks the database. Tests pass an instant of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

import sqlalchemy as sa

__all__ = [
    "AppendRow",
    "Borrowed",
    "ClaimAnswer",
    "ClaimRow",
    "Connection",
    "Database",
    "Held",
    "Rows",
    "StateCounts",
    "Statements",
]

P = ParamSpec("P")
T = TypeVar("T")


class Rows(Protocol):
    """What a statement found: a driver's cursor, or SQLAlchemy's."""

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""
        ...

    def fetchone(self) -> Any:
        """Return the next row, `None` at the end."""
        ...

    def fetchall(self) -> Sequence[Any]:
        """Return the rows that are left."""
        ...


class Connection(Protocol):
    """What statements run on.

    Ours are the driver's own connections: what SQLAlchemy does for each execution takes as long
    as half of a commit. A caller's is `Borrowed`, so that hooks of its engine see our statements.
    """

    def execute(self, statement: str, parameters: Any = ..., /) -> Rows:
        """Run one statement; the parameters are in the driver's style."""
        ...

    def executemany(self, statement: str, parameters: Sequence[Any], /) -> Rows:
        """Run one statement for each of several sets of parameters."""
        ...


class Borrowed:
    """A caller's connection, inside the caller's transaction."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, parameters: Any = (), /) -> Rows:
        """See `Connection.execute`."""
        return self._connection.exec_driver_sql(statement, parameters)

    executemany = execute


class AppendRow(NamedTuple):
    """A message to store."""

    topic: str
    id: str
    key: str | None
    payload: bytes
    headers: str | None
    priority: int
    deliver_at: int  # 0: at once
    published_at: int
    dead_letter: bool  # a dead-letter copy: kept longer if no group ever takes it


class ClaimRow(NamedTuple):
    """A delivery that was leased, with its message."""

    seq: int
    token: str
    attempts: int  # spent before this claim
    error: str | None
    id: str | None  # null: the message row is gone (damaged by hand)
    key: str | None
    payload: bytes
    headers: str | None
    priority: int
    deliver_at: int
    published_at: int


class ClaimAnswer(NamedTuple):
    """What a claim found."""

    rows: list[ClaimRow]  # by (priority, seq)
    next_due: int | None  # µs until the next timer ends, if less was found than asked for
    held: set[int]  # the seqs of what was acknowledged first


class Held(NamedTuple):
    """One claim that an operation is about: its row, its fencing token, its lane."""

    seq: int
    token: str
    key: str | None


class StateCounts(NamedTuple):
    """A group's deliveries, counted."""

    ready: int
    scheduled: int
    retrying: int
    waiting: int
    leased: int
    dead: int
    oldest_ready_age: int | None  # microseconds


class Statements(Protocol):
    """The SQL of one database. Every method runs on a connection inside a write transaction.

    Exceptions: `find_group`, `peek`, `count` and `check` only read.
    """

    peeks: bool
    """Whether a claim should `peek` first: where finding nothing must not take the write lock."""

    def find_group(self, connection: Connection, topic: str, group: str) -> int | None:
        """Return the id of a registered group."""
        ...

    def ensure_group(
        self, connection: Connection, topic: str, group: str, earliest: bool, now: int | None
    ) -> None:
        """Register a group unless it exists; backfill it if it is new and `earliest`."""
        ...

    def append(
        self,
        connection: Connection,
        rows: Sequence[AppendRow],
        now: int | None,
        *,
        borrowed: bool = False,
        sender: str = "",
    ) -> None:
        """Store the rows that are new, fan them out, in publish order.

        `borrowed`: the transaction is the caller's, who may catch an error and commit all the same.
        `sender`: wake other processes at the commit, in this name; empty: do not.
        """
        ...

    def peek(
        self, connection: Connection, group_ids: Sequence[int], now: int | None
    ) -> list[tuple[bool, int | None]]:
        """Say of each group whether a claim could find something, and when the next timer ends.

        In µs from now; `None`: there is none.
        """
        ...

    def claim(
        self,
        connection: Connection,
        group_id: int,
        settled: Sequence[Held],
        limit: int,
        lease: int,
        max_in_flight: int,
        now: int | None,
    ) -> ClaimAnswer:
        """Complete what is `settled`, as `settle` does, then lease due rows."""
        ...

    def settle(
        self,
        connection: Connection,
        group_id: int,
        claims: Sequence[Held],
        error: str | None,
        now: int | None,
    ) -> set[int]:
        """Complete (`error` is `None`) or kill claims, promote their lanes; return held seqs."""
        ...

    def requeue(
        self,
        connection: Connection,
        group_id: int,
        claims: Sequence[Held],
        backoff: int,
        error: str | None,
        spend: int,
        now: int | None,
    ) -> set[int]:
        """Give claims back, due in `backoff` µs, `spend` attempts spent; return held seqs.

        `error` `None` keeps the text that is there.
        """
        ...

    def extend(
        self,
        connection: Connection,
        group_id: int,
        claims: Sequence[Held],
        lease: int,
        now: int | None,
    ) -> set[int]:
        """Renew unexpired leases; return held seqs."""
        ...

    def purge_dead(
        self, connection: Connection, retention: int, batch: int, now: int | None
    ) -> int:
        """Delete up to `batch` dead deliveries older than `retention` µs."""
        ...

    def purge_messages(
        self,
        connection: Connection,
        retention: int,
        dead_retention: int,
        batch: int,
        now: int | None,
    ) -> int:
        """Delete up to `batch` messages that no delivery needs, older than `retention` µs."""
        ...

    def count(self, connection: Connection, group_id: int, now: int | None) -> StateCounts:
        """Count a group's deliveries by state."""
        ...

    def check(self, connection: Connection) -> None:
        """Touch every table: raises the driver's error if one is missing."""
        ...


class Database(Protocol):
    """Connections of our own to one database, and its errors. Thread-safe and fork-aware."""

    def write(
        self,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run `work` in a write transaction that survives a process kill once it returned."""
        ...

    def write_durably(
        self,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Like `write`, and it survives a power cut."""
        ...

    def read(
        self,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run `work`, which only reads. Never waits for a writer."""
        ...

    def borrow(self, connection: sa.Connection) -> Connection:
        """Check a caller's connection and make it ready to be written through.

        Raises:
            UnsupportedError: it is on autocommit, or another kind of database.
        """
        ...

    def classify(self, error: BaseException, borrowed: Borrowed | None = None) -> type[Exception]:
        """Say which of `StoreUnavailableError`, `SchemaError`, `StoreError` an error means.

        `borrowed`: the caller's connection that it came from, which may be to a database without
        our tables.

        Decided from the driver's codes, never from message text.
        """
        ...

    def sender(self, *, borrowed: bool) -> str:
        """Return in whose name a publish that is about to begin wakes other processes itself.

        Empty: it does not, and `published` is called behind it, unless it was borrowed.
        """
        ...

    def published(self, topics: Sequence[str]) -> None:
        """Wake other processes: a transaction of ours that published was committed."""
        ...

    def listen(self, wake: Callable[[str], None], stop: threading.Event) -> None:
        """See `WakeSource.listen`."""
        ...

    def before_fork(self) -> None:
        """See `ForkAware`."""
        ...

    def after_fork(self, *, child: bool) -> None:
        """See `ForkAware`."""
        ...

    def close(self) -> None:
        """Close the connections that are ours. Idempotent."""
        ...

    @property
    def driver_error(self) -> type[Exception]:
        """The base of what the driver raises, where SQLAlchemy does not wrap it."""
        ...

    @property
    def migration_target(self) -> sa.Engine | sa.URL:
        """What the migrations run on: the host's engine or URL, our own engine if in memory."""
        ...
