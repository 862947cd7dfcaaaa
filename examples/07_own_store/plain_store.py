"""The plainest store that keeps the contract: rows in memory, and every operation looks at all.

Read it beside `queue_lib.Store`, whose docstrings are the contract. What makes real stores longer
is not the rules: it is finding rows without looking at all of them, and sharing them.
"""

from __future__ import annotations

import copy
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import count, islice

from queue_lib import (
    HEADER_DEAD_LETTER_DELIVERY_ID,
    ClaimBatch,
    Claimed,
    ClaimRequest,
    Config,
    Dependencies,
    EngineConfig,
    Message,
    PurgePolicy,
    Queue,
    QueueClosedError,
    StartFrom,
    Stats,
    delivery_id,
    new_store_queue,
)


def make_queue(config: Config, dependencies: Dependencies) -> Queue:
    """Build the queue for `Config(type="plain")`; the entry point names this function."""
    return new_store_queue(PlainStore(), EngineConfig.from_mapping(config.config))


class State(Enum):
    PENDING = "pending"  # `at`: when it is due
    LEASED = "leased"  # `at`: when the lease ends
    DEAD = "dead"  # `at`: when it died


@dataclass(eq=False)
class Stored:
    message: Message
    at: int  # the later of when it was stored and when it is due
    needed_by: int = 0  # deliveries that are not acknowledged or purged
    taken: bool = False  # by any group, ever


@dataclass(eq=False)
class Row:
    """A delivery. One that was acknowledged has no row."""

    stored: Stored
    at: int
    state: State = State.PENDING
    attempts: int = 0  # spent
    token: str = ""
    error: str = ""


Rows = dict[int, Row]  # in publish order, which is the order of the numbers


class PlainStore:
    """A `queue_lib.Store`. `clock` returns microseconds since 1970; tests pass their own."""

    def __init__(self, clock: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self._clock = clock
        self._closed = False
        self._lock = threading.Lock()  # guards what follows, and what hangs on it
        self._numbers = count()
        self._messages: dict[str, tuple[int, Stored]] = {}  # by id, in publish order
        self._groups: dict[tuple[str, str], Rows] = {}  # by topic and group

    # -- publish ---------------------------------------------------------------------------

    def ensure_group(self, topic: str, group: str, start_from: StartFrom) -> None:
        with self._lock:
            now = self._now()
            if (topic, group) in self._groups:
                return
            rows = self._groups[topic, group] = {}
            if start_from == StartFrom.EARLIEST:
                for number, stored in self._messages.values():
                    if stored.message.topic == topic:
                        _add(rows, number, stored, now)

    def append(self, messages: Sequence[Message]) -> None:
        with self._lock:
            now = self._now()
            for message in messages:
                if message.id not in self._messages:
                    number = next(self._numbers)
                    stored = Stored(_copy(message), max(now, _instant(message.deliver_at)))
                    self._messages[message.id] = number, stored
                    for (topic, _), rows in self._groups.items():
                        if topic == message.topic:
                            _add(rows, number, stored, now)

    # -- consume ---------------------------------------------------------------------------

    def claim(self, request: ClaimRequest) -> ClaimBatch:
        with self._lock:
            now = self._now()
            rows = self._groups.get((request.topic, request.group), {})
            room = request.max
            if request.max_in_flight > 0:
                live = sum(row.state is State.LEASED and row.at >= now for row in rows.values())
                room = min(room, request.max_in_flight - live)
            heads = list(_heads(rows.values()))
            due = [row for row in heads if _is_due(row, now)]
            due.sort(key=lambda row: row.stored.message.priority)  # equal ones stay in order
            lease_end = now + _microseconds(request.lease)
            batch = ClaimBatch(_lease(row, request.group, lease_end) for row in due[: max(room, 0)])
            later = [row.at for row in heads if row.state is State.PENDING and row.at > now]
            if later:
                batch.next_due = timedelta(microseconds=min(later) - now)
            return batch

    def ack(self, claims: Sequence[Claimed]) -> list[str]:
        with self._lock:
            self._now()
            held = []
            for claim in claims:
                if row := _held(claim):
                    self._forget(claim.message.topic, claim.group, claim.message.id)
                    row.token = ""
                    held.append(claim.delivery_id)
            return held

    def retry(self, claim: Claimed, backoff: timedelta, last_error: str) -> bool:
        with self._lock:
            due = self._now() + max(_microseconds(backoff), 0)
            return _move(claim, State.PENDING, due, spent=1, error=last_error)

    def kill(self, claim: Claimed, last_error: str) -> bool:
        with self._lock:
            return _move(claim, State.DEAD, self._now(), spent=1, error=last_error)

    def release(self, claims: Sequence[Claimed]) -> None:
        with self._lock:
            now = self._now()
            for claim in claims:
                _move(claim, State.PENDING, now)

    def extend(self, claims: Sequence[Claimed], lease: timedelta) -> list[str]:
        with self._lock:
            now = self._now()
            held = []
            for claim in claims:
                row = _held(claim)
                if row and row.at >= now:
                    row.at = now + _microseconds(lease)
                    held.append(claim.delivery_id)
            return held

    # -- upkeep ----------------------------------------------------------------------------

    def purge(self, policy: PurgePolicy, batch: int) -> int:
        with self._lock:
            now = self._now()
            dead_before = now - _microseconds(policy.dead_retention)
            acked_before = now - _microseconds(policy.acked_retention)
            dead = list(islice(self._dead(dead_before), batch))
            for topic, group, id_ in dead:
                self._forget(topic, group, id_)
            old = [
                id_
                for id_, (_, stored) in self._messages.items()
                if not stored.needed_by
                and stored.at < (dead_before if _is_untaken_copy(stored) else acked_before)
            ]
            for id_ in old[:batch]:
                del self._messages[id_]
            return len(dead) + len(old[:batch])

    def stats(self, topic: str, group: str) -> Stats:
        with self._lock:
            self._now()
            states = [row.state for row in self._groups.get((topic, group), {}).values()]
            return Stats(*map(states.count, State))

    def ping(self) -> None:
        with self._lock:
            self._now()

    def close(self) -> None:
        with self._lock:
            self._closed = True

    # -- inside, with the lock held ----------------------------------------------------------

    def _now(self) -> int:
        if self._closed:
            raise QueueClosedError("the store is closed")
        return self._clock()

    def _dead(self, before: int) -> Iterable[tuple[str, str, str]]:
        for (topic, group), rows in self._groups.items():
            for row in rows.values():
                if row.state is State.DEAD and row.at < before:
                    yield topic, group, row.stored.message.id

    def _forget(self, topic: str, group: str, message_id: str) -> None:
        number, stored = self._messages[message_id]
        del self._groups[topic, group][number]
        stored.needed_by -= 1


def _add(rows: Rows, number: int, stored: Stored, now: int) -> None:
    rows[number] = Row(stored, max(now, _instant(stored.message.deliver_at)))
    stored.needed_by += 1
    stored.taken = True


def _heads(rows: Iterable[Row]) -> Iterable[Row]:
    """The rows that no earlier one holds back: of each key the first that is not dead."""
    keys = set()
    for row in rows:
        key = row.stored.message.key
        if row.state is not State.DEAD and key not in keys:
            if key:
                keys.add(key)
            yield row


def _is_due(row: Row, now: int) -> bool:
    return row.at <= now if row.state is State.PENDING else row.at < now


def _lease(row: Row, group: str, until: int) -> Claimed:
    row.attempts += row.state is State.LEASED  # a lease that ran out was an attempt, too
    row.state, row.at, row.token = State.LEASED, until, uuid.uuid4().hex
    message = _copy(row.stored.message)
    id_ = delivery_id(message.id, group)
    return Claimed(id_, row.token, group, row.attempts + 1, message, row.error, ref=row)


def _held(claim: Claimed) -> Row | None:
    """Return the row that a claim holds: its token is that of the row's last lease."""
    row = claim.ref
    return row if isinstance(row, Row) and row.token == claim.claim_token != "" else None


def _move(
    claim: Claimed, state: State, at: int, *, spent: int = 0, error: str | None = None
) -> bool:
    row = _held(claim)
    if row is None:
        return False
    row.state, row.at, row.token = state, at, ""
    row.attempts += spent
    row.error = row.error if error is None else error
    return True


def _is_untaken_copy(stored: Stored) -> bool:
    """A dead-letter copy without a reader is kept longer: somebody may still look at it."""
    return not stored.taken and HEADER_DEAD_LETTER_DELIVERY_ID in (stored.message.headers or {})


def _copy(message: Message) -> Message:
    return replace(
        message,
        payload=bytes(message.payload),
        headers=copy.copy(message.headers),
        deliver_at=message.deliver_at and message.deliver_at.astimezone(UTC),
        published_at=message.published_at and message.published_at.astimezone(UTC),
    )


def _microseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)


def _instant(when: datetime | None) -> int:
    return 0 if when is None else _microseconds(when - datetime(1970, 1, 1, tzinfo=UTC))
