"""What every conformance test stands on: a store, a clock, and short words for common steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from queue_lib.message import Message
from queue_lib.options import StartFrom
from queue_lib.stores.base import Claimed, ClaimRequest, PurgePolicy, Stats, Store
from queue_lib.testing.clock import ManualClock

__all__ = [
    "DEADLINE",
    "GROUP",
    "OPERATIONS",
    "TICK",
    "TOPIC",
    "StoreCase",
    "every_test_requires",
    "ids",
    "together",
]

T = TypeVar("T")

TOPIC = "orders"
GROUP = "billing"

OPERATIONS = ("ack", "retry", "kill", "extend", "release")
"""Every operation that is fenced on a claim's token."""

TICK = timedelta(microseconds=1)
"""The least step of a store's clock."""

DEADLINE = 20.0
"""Seconds after which a test that waits for a thread gives up; never reached when all is well."""


class StoreCase:
    """The base of the conformance classes. Their subclass, one for each store, says what to test.

    It overrides `make_store` (or the fixture `given_store`), and `capabilities`:

    ``ack_and_claim``   it implements `AckingClaimer`
    ``peek``            it implements `Peeker`
    ``clock``           the store tells the time by the clock that `make_store` is given
    ``detailed_stats``  it implements `DetailedStats`
    ``shared``          `reopen` gives a second handle on the same data
    ``transactional``   it implements `TransactionalStore`, and `connect` gives a connection
    ``wake``            it implements `WakeSource`
    """

    capabilities: ClassVar[frozenset[str]] = frozenset()

    store: Store
    clock: ManualClock
    _handles: list[Store]

    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        """Return a new, empty store. The test closes it."""
        raise NotImplementedError

    def reopen(self, store: Store) -> Store:
        """Return another handle on the data of `store`. The test closes it."""
        raise NotImplementedError

    def connect(self, store: Store) -> AbstractContextManager[Any]:
        """Return a context with an SQLAlchemy `Connection` to the database of `store`."""
        raise NotImplementedError

    @pytest.fixture(name="clock")
    def given_clock(self) -> ManualClock:
        """Make the clock of a test."""
        return ManualClock()

    @pytest.fixture(name="store")
    def given_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        """Make the store of a test."""
        return self.make_store(clock, tmp_path)

    @pytest.fixture(autouse=True)
    def _bind(self, store: Store, clock: ManualClock) -> Iterator[None]:
        self.store, self.clock, self._handles = store, clock, [store]
        yield
        for handle in self._handles:
            handle.close()

    # -- steps -----------------------------------------------------------------------------

    def second_handle(self) -> Store:
        """Open another handle on the store's data."""
        handle = self.reopen(self.store)
        self._handles.append(handle)
        return handle

    def pass_time(self, duration: timedelta | float) -> None:
        """Let time pass."""
        self.clock.advance(duration)

    def register(
        self, group: str = GROUP, start_from: StartFrom = StartFrom.LATEST, *, topic: str = TOPIC
    ) -> None:
        """Register a group."""
        self.store.ensure_group(topic, group, start_from)

    def message(
        self,
        message_id: str,
        *,
        topic: str = TOPIC,
        key: str = "",
        payload: bytes = b"",
        priority: int = 0,
        headers: dict[str, str] | None = None,
        due_in: timedelta | float | None = None,
    ) -> Message:
        """Build a message; `due_in` schedules it relative to the test's clock."""
        return Message(
            topic=topic,
            id=message_id,
            key=key,
            payload=payload,
            priority=priority,
            headers=headers,
            deliver_at=None if due_in is None else self.clock.instant(due_in),
            published_at=self.clock.instant(),
        )

    def publish(self, *message_ids: str, **fields: Any) -> None:
        """Append one message for each id, in one call."""
        self.store.append([self.message(name, **fields) for name in message_ids])

    def claim(
        self,
        limit: int = 10,
        *,
        lease: timedelta | float = 30,
        topic: str = TOPIC,
        group: str = GROUP,
        cap: int = 0,
        store: Store | None = None,
    ) -> list[Claimed]:
        """Claim up to `limit` deliveries."""
        duration = lease if isinstance(lease, timedelta) else timedelta(seconds=lease)
        request = ClaimRequest(topic, group, "runner", limit, duration, cap)
        return (store or self.store).claim(request)

    def claim_one(self, **options: Any) -> Claimed:
        """Claim the one delivery that there must be to claim."""
        (claim,) = self.claim(**options)
        return claim

    def retry(self, claim: Claimed, backoff: float = 0, last_error: str = "failed") -> None:
        """Retry a claim that is held."""
        assert self.store.retry(claim, timedelta(seconds=backoff), last_error) is True

    def kill(self, claim: Claimed, last_error: str = "given up") -> None:
        """Kill a claim that is held."""
        assert self.store.kill(claim, last_error) is True

    def ack(self, *claims: Claimed) -> None:
        """Acknowledge claims that are held."""
        assert set(self.store.ack(claims)) == {claim.delivery_id for claim in claims}

    def extend(self, *claims: Claimed, lease: float = 30) -> set[str]:
        """Extend claims; return the ids of the messages whose deliveries are still held."""
        held = set(self.store.extend(claims, timedelta(seconds=lease)))
        return {claim.message.id for claim in claims if claim.delivery_id in held}

    def do(self, operation: str, claim: Claimed) -> list[str] | bool | None:
        """Do one of `OPERATIONS`; the answer is true if the store says that it was held.

        (A release says nothing.)
        """
        match operation:
            case "ack":
                return self.store.ack([claim])
            case "retry":
                return self.store.retry(claim, timedelta(0), "by the stale one")
            case "kill":
                return self.store.kill(claim, "by the stale one")
            case "extend":
                return self.store.extend([claim], timedelta(hours=1))
            case "release":
                self.store.release([claim])
                return None
            case _:
                raise ValueError(operation)

    def purge(
        self, *, dead: timedelta | float = 1e9, acked: timedelta | float = 1e9, batch: int = 1000
    ) -> int:
        """Purge with retentions in seconds; by default nothing is old enough."""
        retentions = (
            value if isinstance(value, timedelta) else timedelta(seconds=value)
            for value in (dead, acked)
        )
        return self.store.purge(PurgePolicy(*retentions), batch)

    def stats(self, group: str = GROUP, *, topic: str = TOPIC) -> Stats:
        """Count a group's deliveries."""
        return self.store.stats(topic, group)

    def drain(self, group: str = GROUP, *, topic: str = TOPIC) -> list[str]:
        """Claim and acknowledge until nothing is due; return the message ids in that order."""
        seen: list[str] = []
        while claims := self.claim(100, topic=topic, group=group):
            self.ack(*claims)
            seen += ids(claims)
        return seen


def ids(claims: Iterable[Claimed]) -> list[str]:
    """Return the ids of the claimed messages."""
    return [claim.message.id for claim in claims]


def every_test_requires(*capabilities: str) -> Callable[[type[T]], type[T]]:
    """Mark each test of a class.

    A mark on the class itself would spread: pytest collects the marks of all base classes, so
    it would hold for every test of a store's own class.
    """

    def mark(cls: type[T]) -> type[T]:
        for name, member in list(vars(cls).items()):
            if name.startswith("test_"):
                setattr(cls, name, pytest.mark.requires(*capabilities)(member))
        return cls

    return mark


def together(count: int, work: Callable[[int], T]) -> list[T]:
    """Run `work(0)` to `work(count - 1)` in threads that start at one moment."""
    start = threading.Barrier(count)

    def run(number: int) -> T:
        start.wait(DEADLINE)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return [future.result(DEADLINE) for future in [pool.submit(run, n) for n in range(count)]]
