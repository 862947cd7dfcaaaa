"""The rules of a store, as plainly as they can be written; `StoreMachine` compares stores with it.

One list of deliveries for each group, searched from the front for everything: no indexes, no
states to keep in step, no locks, no clock. Where this module and `Store` disagree, one is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from queue_lib.durations import microseconds
from queue_lib.message import HEADER_DEAD_LETTER_DELIVERY_ID, Message
from queue_lib.options import StartFrom
from queue_lib.stores.base import Claimed, ClaimRequest, GroupStats, PurgePolicy, Stats

__all__ = ["Model", "Row"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

GroupName = tuple[str, str]
"""A topic, and a consumer group on it."""


@dataclass
class Kept:
    """A retained message."""

    message: Message
    seq: int
    stored_at: int
    untaken: bool = False
    """A dead-letter copy that no group ever took."""

    @property
    def due(self) -> int:
        """When it may first be handed out."""
        at = self.message.deliver_at
        return self.stored_at if at is None else max(self.stored_at, microseconds(at - _EPOCH))


@dataclass
class Row:
    """A delivery that is not complete."""

    kept: Kept
    due: int
    """Since when, or from when on, it may be handed out if nothing else is in the way."""
    attempts: int = 0
    token: str | None = None
    """Set while leased, also after the lease ran out, until it is claimed again or settled."""
    lease_end: int = 0
    died: int | None = None
    error: str = ""

    @property
    def key(self) -> str:
        return self.kept.message.key

    @property
    def is_pending(self) -> bool:
        return self.token is None and self.died is None


class Model:
    """What a store should answer."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}
        self.groups: dict[GroupName, list[Row]] = {}
        self._stored = 0

    def append(self, messages: Sequence[Message], now: int) -> None:
        """Store what is new, and fan it out."""
        for message in messages:
            if message.id in self.kept:
                continue
            self._stored += 1
            kept = self.kept[message.id] = Kept(message, self._stored, now)
            listeners = [rows for (topic, _), rows in self.groups.items() if topic == message.topic]
            for rows in listeners:
                rows.append(Row(kept, kept.due))
            is_copy = HEADER_DEAD_LETTER_DELIVERY_ID in (message.headers or {})
            kept.untaken = is_copy and not listeners

    def register(self, topic: str, group: str, start_from: StartFrom, now: int) -> None:
        """Register a group that is new, and backfill it."""
        if (topic, group) in self.groups:
            return
        rows = self.groups[topic, group] = []
        if start_from == StartFrom.EARLIEST:
            for kept in self.kept.values():
                if kept.message.topic == topic:
                    rows.append(Row(kept, max(kept.due, now)))
                    kept.untaken = False

    def claimable(self, request: ClaimRequest, now: int) -> list[Row]:
        """Return what a claim must return, in that order."""
        rows = self.groups.get((request.topic, request.group), [])
        room = request.max
        if request.max_in_flight:
            room = min(room, request.max_in_flight - self.in_flight(rows, now))
        due = [row for row in rows if self.is_due(row, rows, now)]
        due.sort(key=lambda row: (row.kept.message.priority, row.kept.seq))
        return due[: max(room, 0)]

    def in_flight(self, rows: Sequence[Row], now: int) -> int:
        """Count the unexpired leases."""
        return sum(row.token is not None and row.lease_end >= now for row in rows)

    def is_due(self, row: Row, rows: Sequence[Row], now: int) -> bool:
        """Say whether a delivery may be claimed."""
        if row.died is not None or not self.is_head(row, rows):
            return False
        return row.due <= now if row.token is None else row.lease_end < now

    def is_head(self, row: Row, rows: Sequence[Row]) -> bool:
        """Say whether no earlier delivery of the same key is pending or leased."""
        lane = (other for other in rows if other.key == row.key and other.died is None)
        return not row.key or next(lane) is row

    def next_due(self, topic: str, group: str, now: int) -> timedelta | None:
        """Say when the next scheduled or backing-off delivery comes due."""
        rows = self.groups.get((topic, group), [])
        waits = [
            row.due - now
            for row in rows
            if row.is_pending and row.due > now and self.is_head(row, rows)
        ]
        return timedelta(microseconds=min(waits)) if waits else None

    def lease(self, row: Row, token: str, until: int) -> None:
        """Claim a row; claiming a lease that ran out spends an attempt."""
        row.attempts += row.token is not None
        row.token, row.lease_end = token, until

    def held(self, claim: Claimed) -> Row | None:
        """Return the row that a claim holds."""
        held = (row for _, row in self._everywhere() if row.token == claim.claim_token)
        return next(held, None)

    def ack(self, row: Row, now: int) -> None:
        """Complete a held row."""
        rows = self._rows_of(row)
        rows.remove(row)
        self._bring_forward(row.key, rows, now)

    def kill(self, row: Row, error: str, now: int) -> None:
        """Dead-letter a held row."""
        row.attempts += 1
        row.token, row.died, row.error = None, now, error
        self._bring_forward(row.key, self._rows_of(row), now)

    def retry(self, row: Row, backoff: timedelta, error: str, now: int) -> None:
        """Make a held row due again, one attempt spent."""
        row.attempts += 1
        row.token, row.due, row.error = None, now + microseconds(backoff), error

    def release(self, row: Row, now: int) -> None:
        """Give a held row back."""
        row.token, row.due = None, now

    def purge(self, policy: PurgePolicy, now: int) -> int:
        """Delete what outlived its use; return how many deliveries and messages that were."""
        dead_before = now - microseconds(policy.dead_retention)
        acked_before = now - microseconds(policy.acked_retention)
        gone = 0
        for rows in self.groups.values():
            dead = [row for row in rows if row.died is not None and row.died < dead_before]
            for row in dead:
                rows.remove(row)
            gone += len(dead)
        needed = {row.kept.seq for _, row in self._everywhere()}
        for kept in list(self.kept.values()):
            before = dead_before if kept.untaken else acked_before
            if kept.seq not in needed and kept.due < before:
                del self.kept[kept.message.id]
                gone += 1
        return gone

    def stats(self, topic: str, group: str) -> Stats:
        """Count a group's deliveries."""
        rows = self.groups.get((topic, group), [])
        return Stats(
            pending=sum(row.is_pending for row in rows),
            leased=sum(row.token is not None for row in rows),
            dead=sum(row.died is not None for row in rows),
        )

    def group_stats(self, topic: str, group: str, now: int) -> GroupStats:
        """Count a group's deliveries by what they wait for."""
        rows = self.groups.get((topic, group), [])
        heads = [row for row in rows if row.is_pending and self.is_head(row, rows)]
        ready = [row for row in heads if row.due <= now]
        counts = self.stats(topic, group)
        return GroupStats(
            ready=len(ready),
            scheduled=sum(row.due > now and not row.attempts for row in heads),
            retrying=sum(row.due > now and row.attempts > 0 for row in heads),
            behind_key=counts.pending - len(heads),
            leased=counts.leased,
            dead=counts.dead,
            oldest_ready_age=max(
                (timedelta(microseconds=now - row.due) for row in ready), default=None
            ),
        )

    def _bring_forward(self, key: str, rows: Sequence[Row], now: int) -> None:
        """Let the next of a lane wait from now on, or for its own schedule."""
        if key:
            lane = (row for row in rows if row.key == key and row.died is None)
            if (following := next(lane, None)) is not None:
                following.due = max(following.kept.due, now)

    def _everywhere(self) -> Iterator[tuple[list[Row], Row]]:
        for rows in self.groups.values():
            for row in rows:
                yield rows, row

    def _rows_of(self, wanted: Row) -> list[Row]:
        return next(rows for rows, row in self._everywhere() if row is wanted)
