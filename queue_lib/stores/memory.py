"""The store in this process's memory: for tests, and for queues that may die with the process.

A verified fake: it passes the suite that every store passes. One lock guards everything; nothing
in here waits while holding it. Each operation costs O(log n) for each delivery it touches, however
many others are scheduled, waiting, leased or dead.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from heapq import heappop

from queue_lib.durations import microseconds
from queue_lib.errors import QueueClosedError
from queue_lib.message import HEADER_DEAD_LETTER_DELIVERY_ID, Message
from queue_lib.names import delivery_id
from queue_lib.options import StartFrom
from queue_lib.stores.base import (
    ClaimBatch,
    Claimed,
    ClaimRequest,
    GroupStats,
    PurgePolicy,
    Stats,
)
from queue_lib.stores.memory_rows import CLAIMABLE, Delivery, Group, Heap, State, Stored, Topic

__all__ = ["MemoryStore"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MemoryStore:
    """A `Store` in memory. Thread-safe; its contents end with the process.

    A forked child starts with a copy of everything, leases included: from then on parent and
    child are two separate queues.

    `clock` returns the instant in µs since 1970. The default reads the wall clock once, and then
    follows the monotonic clock: a stepped wall clock moves no lease.
    """

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock or _anchored_clock()
        self._lock = threading.Lock()  # guards everything below
        self._closed = False
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[str, Stored] = {}
        self._seq = itertools.count(1)
        self._tokens = map(f"{uuid.uuid4().hex}-{{}}".format, itertools.count(1))
        self._dead: deque[Delivery] = deque()  # in order of death
        self._finished: Heap[Stored] = []  # no delivery needs them; by age
        self._untaken: Heap[Stored] = []  # dead-letter copies that no group ever took; by age

    # -- publish ---------------------------------------------------------------------------

    def append(self, messages: Sequence[Message]) -> None:
        """See `Store.append`."""
        copies = [(_copy(message), _instant(message.deliver_at)) for message in messages]
        with self._lock:
            now = self._now()
            for message, due in copies:
                if message.id not in self._by_id:
                    self._store(message, due, now)

    def _store(self, message: Message, due: int, now: int) -> None:
        topic = self._topics.setdefault(message.topic, Topic())
        stored = Stored(message, next(self._seq), due, max(now, due))
        self._by_id[message.id] = topic.messages[stored.seq] = stored
        for group in topic.groups.values():
            group.add(stored, now)
        if not topic.groups:
            is_copy = HEADER_DEAD_LETTER_DELIVERY_ID in (message.headers or ())
            stored.rest_in(self._untaken if is_copy else self._finished)

    # -- consume ---------------------------------------------------------------------------

    def ensure_group(self, topic: str, group: str, start_from: StartFrom) -> None:
        """See `Store.ensure_group`."""
        with self._lock:
            now = self._now()
            home = self._topics.setdefault(topic, Topic())
            if group in home.groups:
                return
            home.groups[group] = new = Group(group)
            if start_from == StartFrom.EARLIEST:
                for stored in home.messages.values():
                    new.add(stored, now)

    def claim(self, request: ClaimRequest) -> ClaimBatch:
        """See `Store.claim`."""
        with self._lock:
            now = self._now()
            group = self._group(request.topic, request.group)
            if group is None:
                return ClaimBatch()
            group.catch_up(now)
            room = request.max
            if request.max_in_flight > 0:
                room = min(room, request.max_in_flight - group.counts[State.LEASED])
            lease_end = now + microseconds(request.lease)
            claims: list[Claimed] = []
            while len(claims) < room and group.ready:
                delivery = heappop(group.ready)[-1]
                if delivery.state in CLAIMABLE:  # else settled after its lease had run out
                    claims.append(self._lease(delivery, lease_end))
            next_due = timedelta(microseconds=group.timers[0][0] - now) if group.timers else None
            return ClaimBatch(claims, next_due=next_due)

    def _lease(self, delivery: Delivery, until: int) -> Claimed:
        if delivery.state is State.EXPIRED:
            delivery.attempts += 1
        delivery.token = next(self._tokens)
        delivery.move(State.LEASED, until)
        message = _copy(delivery.stored.message)
        group = delivery.group.name
        return Claimed(
            delivery_id(message.id, group),
            delivery.token,
            group,
            delivery.attempts + 1,
            message,
            delivery.error,
            delivery,
        )

    def ack(self, claims: Sequence[Claimed]) -> list[str]:
        """See `Store.ack`."""
        with self._lock:
            now = self._now()
            held = []
            for claim in claims:
                if (delivery := _held(claim)) is not None:
                    self._settle(delivery, State.ABSENT, now)
                    self._drop(delivery)
                    held.append(claim.delivery_id)
            return held

    def kill(self, claim: Claimed, last_error: str) -> bool:
        """See `Store.kill`."""
        with self._lock:
            now = self._now()
            if (delivery := _held(claim)) is None:
                return False
            delivery.attempts += 1
            delivery.error = last_error
            self._settle(delivery, State.DEAD, now)
            self._dead.append(delivery)
            return True

    def retry(self, claim: Claimed, backoff: timedelta, last_error: str) -> bool:
        """See `Store.retry`."""
        with self._lock:
            now = self._now()
            if (delivery := _held(claim)) is None:
                return False
            delivery.attempts += 1
            delivery.error = last_error
            delivery.token = ""
            delivery.move(State.RETRYING, now + max(microseconds(backoff), 0))
            return True

    def release(self, claims: Sequence[Claimed]) -> None:
        """See `Store.release`."""
        with self._lock:
            now = self._now()
            for claim in claims:
                if (delivery := _held(claim)) is not None:
                    delivery.token = ""
                    delivery.move(State.READY, now)

    def extend(self, claims: Sequence[Claimed], lease: timedelta) -> list[str]:
        """See `Store.extend`."""
        with self._lock:
            now = self._now()
            held = []
            for claim in claims:
                delivery = _held(claim)
                if delivery is not None and delivery.at >= now:
                    delivery.move(State.LEASED, now + microseconds(lease))
                    held.append(claim.delivery_id)
            return held

    def _settle(self, delivery: Delivery, state: State, now: int) -> None:
        """End a delivery, and let the next of its lane come forward."""
        delivery.token = ""
        delivery.move(state, now)
        lanes, key = delivery.group.lanes, delivery.stored.message.key
        if key:
            lane = lanes[key]
            lane.popleft()
            if lane:
                lane[0].come_forward(now)
            else:
                del lanes[key]

    # -- upkeep ----------------------------------------------------------------------------

    def purge(self, policy: PurgePolicy, batch: int) -> int:
        """See `Store.purge`."""
        with self._lock:
            now = self._now()
            dead_before = now - microseconds(policy.dead_retention)
            acked_before = now - microseconds(policy.acked_retention)
            dead = 0
            while self._dead and dead < batch and self._dead[0].at < dead_before:
                delivery = self._dead.popleft()
                delivery.move(State.ABSENT, now)
                self._drop(delivery)
                dead += 1
            messages = self._forget(self._finished, acked_before, batch)
            messages += self._forget(self._untaken, dead_before, batch - messages)
            return dead + messages

    def _drop(self, delivery: Delivery) -> None:
        stored = delivery.stored
        stored.deliveries -= 1
        if not stored.deliveries:
            stored.rest_in(self._finished)

    def _forget(self, heap: Heap[Stored], before: int, batch: int) -> int:
        gone = 0
        while heap and gone < batch and heap[0][0] < before:
            stored = heappop(heap)[-1]
            if stored.resting is heap:  # else a late group took it, or this is its second entry
                stored.resting = None
                del self._by_id[stored.message.id]
                del self._topics[stored.message.topic].messages[stored.seq]
                gone += 1
        return gone

    def stats(self, topic: str, group: str) -> Stats:
        """See `Store.stats`."""
        with self._lock:
            self._now()
            if (found := self._group(topic, group)) is None:
                return Stats()
            counts = found.counts
            leased = counts[State.LEASED] + counts[State.EXPIRED]
            dead = counts[State.DEAD]
            return Stats(pending=sum(counts[1:]) - leased - dead, leased=leased, dead=dead)

    def group_stats(self, topic: str, group: str) -> GroupStats:
        """See `DetailedStats.group_stats`. Reads every due delivery."""
        with self._lock:
            now = self._now()
            if (found := self._group(topic, group)) is None:
                return GroupStats()
            found.catch_up(now)
            counts = found.counts
            since = (entry[-1].at for entry in found.ready if entry[-1].state is State.READY)
            oldest = min(since, default=None)
            return GroupStats(
                ready=counts[State.READY],
                scheduled=counts[State.SCHEDULED],
                retrying=counts[State.RETRYING],
                behind_key=counts[State.WAITING],
                leased=counts[State.LEASED] + counts[State.EXPIRED],
                dead=counts[State.DEAD],
                oldest_ready_age=None if oldest is None else timedelta(microseconds=now - oldest),
            )

    def ping(self) -> None:
        """See `Store.ping`."""
        with self._lock:
            self._now()

    def close(self) -> None:
        """See `Store.close`."""
        with self._lock:
            self._closed = True

    def before_fork(self) -> None:
        """See `ForkAware.before_fork`: no operation is half done at the fork."""
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        """See `ForkAware.after_fork`."""
        self._lock.release()

    # -- inside ----------------------------------------------------------------------------

    def _now(self) -> int:
        if self._closed:
            raise QueueClosedError("the store is closed")
        return self._clock()

    def _group(self, topic: str, group: str) -> Group | None:
        home = self._topics.get(topic)
        return None if home is None else home.groups.get(group)


def _held(claim: Claimed) -> Delivery | None:
    """Return the delivery that a claim holds: its token is still the one of the last lease."""
    delivery = claim.ref
    if isinstance(delivery, Delivery) and delivery.token and delivery.token == claim.claim_token:
        return delivery
    return None


def _copy(message: Message) -> Message:
    """Copy what a caller could change later; also makes a plain message of a delivery."""
    return Message(
        message.topic,
        bytes(message.payload),
        message.key,
        message.id,
        dict(message.headers) if message.headers else None,
        _in_utc(message.deliver_at),
        _in_utc(message.published_at),
        message.priority,
    )


def _in_utc(value: datetime | None) -> datetime | None:
    return None if value is None else value.astimezone(UTC)


def _instant(value: datetime | None) -> int:
    return 0 if value is None else microseconds(value - _EPOCH)


def _anchored_clock() -> Callable[[], int]:
    anchor = time.time_ns() - time.monotonic_ns()
    return lambda: (time.monotonic_ns() + anchor) // 1000
