"""Claiming: who is next, one INSERT, and the proof that it was ours.

Three sources are merged by (priority, seq): what is ready, leases that ran out, and the log after
the cursor. The log is walked here, message by message, as long as nearly all of it can be leased;
where it has priorities, or a long row of messages behind a blocked lane, the server passes it into
the ready ones and the lanes by itself.
"""

from __future__ import annotations

import uuid
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice

from queue_lib.durations import microseconds
from queue_lib.stores.base import ClaimRequest
from queue_lib.stores.clickhouse import statements
from queue_lib.stores.clickhouse.codec import chunks
from queue_lib.stores.clickhouse.errors import RefusedError
from queue_lib.stores.clickhouse.group import Entry, Group, Lease, LogRow, Rows, load_group
from queue_lib.stores.clickhouse.turns import Turn

__all__ = ["Claim", "Leased"]

_PASSED = 1000  # messages that a claim walks past; more are passed by the server
_PASS = 400_000  # messages that one statement passes: they must remain one block
_RIPEN = 400_000
_MATURE = 1000

Leased = tuple[Lease, LogRow | None]


@dataclass
class Claim:
    """One claim; survives the loss of its turn, and then goes on in the next."""

    request: ClaimRequest
    has_news: bool = False
    """Somebody in this process published a priority: look before believing what is remembered."""
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    next_due: timedelta | None = None

    def run(self, turn: Turn[Group]) -> list[Leased]:
        """Lease what is due."""
        group = load_group(turn, self.request.topic, self.request.group)
        if group is None:
            return []
        # After a turn that was lost behind the INSERT, the rows that still have our token are ours.
        ours = [lease for lease in group.leased.values() if lease.token == self.token]
        if ours:
            return self._with_bodies(turn, group, sorted(ours, key=_rank), {})
        group.begin()
        leases: list[Lease] = []
        bodies: dict[int, LogRow] = {}
        while self._round(turn, group, leases, bodies):
            pass
        if leases:
            self._read_back(turn, group, leases)
        return self._with_bodies(turn, group, leases, bodies)

    # -- choosing --------------------------------------------------------------------------

    def _round(
        self, turn: Turn[Group], group: Group, leases: list[Lease], bodies: dict[int, LogRow]
    ) -> bool:
        """Choose and insert; say whether to go on: the server passed something meanwhile."""
        now = turn.clock.earliest()
        room = self._room(group, now, len(leases))
        if room <= 0:
            return False
        self._prepare(turn, group, now)
        rows = Rows(turn, group)
        ripe = self._ripen(turn, group, rows, now)
        lost = deque(
            sorted((lease for lease in group.leased.values() if lease.end < now), key=_rank)
        )
        end = turn.clock.latest() + microseconds(self.request.lease)
        cursor, passed, first = group.cursor, 0, len(leases)
        while len(leases) - first < room:
            message = group.log.first(turn, group, room)
            if message is not None and self._is_held_up(turn, group, rows, message, now):
                passed += 1
                if passed == _PASSED:
                    break
                continue
            ready = group.ready.first(turn, group)
            candidates = [found for found in (ready, message, *islice(lost, 1)) if found]
            if not candidates:
                break
            best = min(candidates, key=_rank)
            if isinstance(best, LogRow):
                bodies[best.seq] = best
                lease = self._take_message(group, rows, best, end)
            elif isinstance(best, Lease):
                lease = self._take_lost(rows, lost.popleft(), end)
            else:
                lease = self._take_ready(group, rows, ripe, end)
            rows.leased(lease)
            leases.append(lease)
        for entry in ripe.values():
            rows.ready(entry)
        for lease in leases[first:]:
            group.leased[lease.seq] = lease
        if group.cursor != cursor:
            group.raise_low()
            rows.group()
        rows.insert()
        if passed == _PASSED:
            return self._pass(turn, group, _PASS)
        self._see_next_due(turn, group, len(leases) - first < room)
        return False

    def _room(self, group: Group, now: int, taken: int) -> int:
        room, cap = self.request.max - taken, self.request.max_in_flight
        if cap:
            room = min(room, cap - sum(lease.end >= now for lease in group.leased.values()))
        return room

    def _prepare(self, turn: Turn[Group], group: Group, now: int) -> None:
        """Let the server move what memory is too small for, before anything is chosen."""
        group.log.has_news |= self.has_news
        self.has_news = False
        if group.log.first(turn, group, self.request.max) is None:
            return
        if group.log.has_priorities(turn, group):
            while self._pass(turn, group, _PASS):
                pass

    def _ripen(self, turn: Turn[Group], group: Group, rows: Rows, now: int) -> dict[int, Entry]:
        """Move timers that are over to the ready ones; return those whose row is still to write."""
        ripe: dict[int, Entry] = {}
        while (entry := group.timers.first(turn, group)) is not None and entry.at <= now:
            if not ripe:
                group.ready.first(turn, group)
                if not (group.timers.is_whole and group.ready.is_whole):
                    turn.command(
                        statements.RIPEN, topic=group.topic, group=group.name, now=now,
                        limit=_RIPEN, ver=turn.number(),
                    )  # fmt: skip
                    group.forget()
                    group.begin()
                    continue
            group.timers.pop()
            rows.no_timer(entry)
            group.ready.add(entry)
            ripe[entry.seq] = entry
        return ripe

    def _is_held_up(
        self, turn: Turn[Group], group: Group, rows: Rows, message: LogRow, now: int
    ) -> bool:
        """Move the cursor past a message that is not due, or behind its key."""
        lane = group.lanes[message.key] if message.key else None
        if not lane and message.due <= now:
            return False
        if not lane:
            entry = Entry(message.seq, message.key, message.prio, message.due)
            # The window must know where it ends before a row is written that it does not have.
            group.timers.first(turn, group)
            rows.timer(entry)
            group.timers.add(entry)
        self._step(group, rows, message)
        return True

    def _step(self, group: Group, rows: Rows, message: LogRow) -> None:
        group.log.rows.popleft()
        group.cursor = message.seq
        if message.key:
            rows.lane(message.key, message.seq, message.prio, message.due)
            group.lanes[message.key].append(message.seq, message.prio, message.due)

    def _take_message(self, group: Group, rows: Rows, message: LogRow, end: int) -> Lease:
        self._step(group, rows, message)
        return Lease(message.seq, message.key, message.prio, end, self.token, 0, "")

    def _take_ready(self, group: Group, rows: Rows, ripe: dict[int, Entry], end: int) -> Lease:
        entry = group.ready.pop()
        if ripe.pop(entry.seq, None) is None:
            rows.not_ready(entry)
        return Lease(entry.seq, entry.key, entry.prio, end, self.token, entry.attempts, entry.error)

    def _take_lost(self, rows: Rows, old: Lease, end: int) -> Lease:
        if old.key:
            # Again, under our version: a late tombstone of the one who lost it must not free it.
            rows.lane(old.key, old.seq, old.prio, 0)
        return Lease(old.seq, old.key, old.prio, end, self.token, old.attempts + 1, old.error)

    def _pass(self, turn: Turn[Group], group: Group, limit: int) -> bool:
        """Let the server move the cursor on; say whether there was anything."""
        ((upto, count),) = turn.select(
            statements.UPTO, topic=group.topic, seq=group.cursor, limit=limit
        )
        if not count:
            return False
        turn.command(
            statements.PASS, topic=group.topic, group=group.name, cursor=group.cursor, upto=upto,
            now=turn.clock.earliest(), ver=turn.number(), low=group.low, start=group.start,
            registered=group.registered, checked=group.checked, pins=group.written_pins(),
        )  # fmt: skip
        group.cursor = upto
        group.forget()
        group.begin()
        return True

    def _see_next_due(self, turn: Turn[Group], group: Group, saw_all: bool) -> None:
        if saw_all and group.log.ended and not group.log.rows:
            timer = group.timers.first(turn, group)
            if timer is not None:
                ahead = max(timer.at - turn.clock.earliest(), 0)
                self.next_due = timedelta(microseconds=ahead)

    # -- proving ---------------------------------------------------------------------------

    def _read_back(self, turn: Turn[Group], group: Group, leases: list[Lease]) -> None:
        """Check that every row has our token, and that nobody raised the fence meanwhile.

        The token alone proves nothing: a newcomer that has read his candidates may not have
        written yet. His fence is there before he reads.
        """
        found, fence, log = 0, 0, group.log
        for part in chunks(lease.seq for lease in leases):
            for what, value, count in turn.select(
                statements.READ_BACK, topic=group.topic, group=group.name, seqs=part,
                token=self.token, name=turn.seat.name, cursor=max(log.plain_upto, group.cursor),
                log=0 if log.ended else 1,
            ):  # fmt: skip
                if what == 0:
                    found += 1
                elif what == 1:
                    fence = max(fence, value)
                elif not log.ended:
                    log.look(value, count)
        if found != len(leases) or fence > turn.fence:
            raise RefusedError(f"{turn.seat.name}: somebody else came in during a claim")

    def _with_bodies(
        self, turn: Turn[Group], group: Group, leases: list[Lease], bodies: dict[int, LogRow]
    ) -> list[Leased]:
        missing = [lease.seq for lease in leases if lease.seq not in bodies]
        for part in chunks(missing):
            for row in turn.select(statements.BODIES, topic=group.topic, seqs=part):
                bodies[row[0]] = LogRow(*row)
        return [(lease, bodies.get(lease.seq)) for lease in leases]


def _rank(candidate: LogRow | Entry | Lease) -> tuple[int, int]:
    return candidate.prio, candidate.seq
