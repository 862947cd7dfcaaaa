"""What the cases need of each kind of database: empty ones, a floor, rows by the million."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Protocol

import sqlalchemy as sa

from queue_lib import Store

__all__ = ["KINDS", "WAL", "CountedStore", "Floor", "Host", "Site", "host"]

WAL = "WAL"
"""Among the sizes of a site: what is written a second time later."""
KINDS = ("sqlite", "postgres", "clickhouse", "clickhouse-http")


class Floor(Protocol):
    """The store's own statements through the database driver alone, on one connection.

    What is left out is what the library adds: its pool, the engine with its threads, messages as
    objects, validation, retries and the translation of errors.
    """

    def publish(self, count: int, payload: bytes) -> None:
        """Store new messages in one transaction, as durably as the store does."""
        ...

    def fill(self, count: int) -> None:
        """Have as many messages to drain, where it takes real ones."""
        ...

    def drain(self, batch: int) -> int:
        """Acknowledge what was claimed before and claim `batch` in one step; how many came."""
        ...

    def claim_and_ack(self, batch: int) -> int:
        """Claim `batch`, then acknowledge; how many came."""
        ...

    def close(self) -> None: ...


class CountedStore(Store, Protocol):
    """A store that keeps count of what it is asked, and of what it asks."""

    batches: list[int]
    """What each claim found."""

    @property
    def statements(self) -> int:
        """How many were sent to the database."""
        ...


class Site(abc.ABC):
    """A migrated database without rows."""

    kind: str
    url: sa.URL
    locker_url = ""
    """Where the processes that share this site find their locks; empty if they need none."""

    @abc.abstractmethod
    def store(self, *, wake: bool = True) -> Store:
        """Open the store. `wake`: tell other processes, and listen to them, where it can."""

    @abc.abstractmethod
    def counted(self, *, wake: bool = True) -> CountedStore:
        """Open the store so that it counts."""

    @abc.abstractmethod
    def floor(self) -> Floor:
        """Connect past the store."""

    @abc.abstractmethod
    def fill(
        self,
        count: int,
        *,
        keys: int = 0,
        due_in: timedelta = timedelta(0),
        age: timedelta = timedelta(0),
    ) -> None:
        """Have `count` messages of 100 bytes, and a delivery for each group that there is.

        The rows are as the store would have left them `age` ago. Messages that are there before
        the first group are what finished ones leave behind.
        """

    @abc.abstractmethod
    def sizes(self) -> dict[str, int]:
        """Return the bytes of what grows, by its name."""

    def hold_open(self) -> AbstractContextManager[None]:
        """Keep a foreign transaction, which has read, open during the block; SQL only."""
        raise NotImplementedError


class Host(Protocol):
    """Makes sites, and removes them."""

    def site(self, *, shared: bool = False) -> AbstractContextManager[Site]:
        """Make a site for a block. `shared`: other processes will work on it, too."""
        ...


@contextmanager
def host(kind: str) -> Iterator[Host]:
    """Start what the sites of a kind need. Each kind is imported only here: see its extra."""
    opened: Callable[[], AbstractContextManager[Host]]
    if kind == "sqlite":
        from benchmarks.databases.sqlite import SqliteHost

        opened = SqliteHost
    elif kind == "postgres":
        from benchmarks.databases.postgres import PostgresHost

        opened = PostgresHost
    else:
        from benchmarks.databases.clickhouse import ClickHouseHost

        opened = lambda: ClickHouseHost(kind)  # noqa: E731
    with opened() as made:
        yield made
