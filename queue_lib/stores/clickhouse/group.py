"""What a process remembers of a consumer group while nobody else holds its lock.

Only the first of many: of ready and timed deliveries, of each lane and of the log a bounded
number is in memory, and each collection knows where its knowledge ends.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from queue_lib.stores.clickhouse import statements
from queue_lib.stores.clickhouse.codec import chunks
from queue_lib.stores.clickhouse.schema import CURSOR, DEAD, LANE, LEASED, READY, TIMER
from queue_lib.stores.clickhouse.turns import Turn

__all__ = ["Entry", "Group", "Lease", "LogRow", "Rows", "load_group"]

_WINDOW = 1000  # deliveries of a kind, or of a lane, or of the log, that are read at once
_READ_AHEAD = 8 << 20  # bytes of payloads
_KNOWN_LANES = 50_000

Position = tuple[int, int]
"""(n, seq): the sorting key of a kind."""


class LogRow(NamedTuple):
    """A message."""

    seq: int
    id: str
    key: str
    prio: int
    due: int  # 0: at once
    published: int
    stored: int
    headers: str
    payload: str


@dataclass(slots=True)
class Entry:
    """A delivery that is ready or timed."""

    seq: int
    key: str
    prio: int
    at: int
    attempts: int = 0
    error: str = ""


@dataclass(slots=True)
class Lease:
    """A delivery that is leased."""

    seq: int
    key: str
    prio: int
    end: int
    token: str
    attempts: int
    error: str


class Rows:
    """The rows that one operation inserts, all under one version."""

    def __init__(self, turn: Turn[Any], group: Group) -> None:
        self._turn = turn
        self._group = group
        self._rows: list[tuple[Any, ...]] = []

    def __bool__(self) -> bool:
        return bool(self._rows)

    def _add(
        self, kind: int, seq: int, *, lane: str = "", n: int = 0, gone: bool = False,
        key: str = "", prio: int = 0, at: int = 0, lease: int = 0, token: str = "",
        attempts: int = 0, error: str = "", cursor: int = 0, low: int = 0, start: int = 0,
    ) -> None:  # fmt: skip
        self._rows.append(
            (kind, lane, n, seq, int(gone), key, prio, at, lease, token, attempts, error, cursor,
             low, start)
        )  # fmt: skip

    def ready(self, entry: Entry) -> None:
        self._add(
            READY, entry.seq, n=entry.prio, key=entry.key, prio=entry.prio, at=entry.at,
            attempts=entry.attempts, error=entry.error,
        )  # fmt: skip

    def not_ready(self, entry: Entry) -> None:
        self._add(READY, entry.seq, n=entry.prio, gone=True)

    def timer(self, entry: Entry) -> None:
        self._add(
            TIMER, entry.seq, n=entry.at, key=entry.key, prio=entry.prio, at=entry.at,
            attempts=entry.attempts, error=entry.error,
        )  # fmt: skip

    def no_timer(self, entry: Entry) -> None:
        self._add(TIMER, entry.seq, n=entry.at, gone=True)

    def lane(self, key: str, seq: int, prio: int, at: int) -> None:
        self._add(LANE, seq, lane=key, key=key, prio=prio, at=at)

    def not_in_lane(self, key: str, seq: int) -> None:
        self._add(LANE, seq, lane=key, gone=True)

    def leased(self, lease: Lease) -> None:
        self._add(
            LEASED, lease.seq, key=lease.key, prio=lease.prio, lease=lease.end,
            token=lease.token, attempts=lease.attempts, error=lease.error,
        )  # fmt: skip

    def not_leased(self, seq: int, ended: int = 0) -> None:
        """`ended`: when the delivery ended for good; 0 if it goes on."""
        self._add(LEASED, seq, gone=True, at=ended)

    def dead(self, lease: Lease, now: int, error: str) -> None:
        self._add(
            DEAD, lease.seq, n=now, key=lease.key, prio=lease.prio, at=now,
            attempts=lease.attempts + 1, error=error,
        )  # fmt: skip

    def group(self) -> None:
        """Write the cursor's row."""
        group = self._group
        self._add(
            CURSOR, 0, at=group.registered, lease=group.checked, cursor=group.cursor,
            low=group.low, start=group.start, error=group.written_pins(),
        )  # fmt: skip

    def insert(self) -> None:
        """Write them: all or none. If it fails, what is in memory is forgotten with the turn.

        Only now do they get their version: above that of all that the server moved meanwhile.
        """
        if self._rows:
            head, ver = (self._group.topic, self._group.name), self._turn.number()
            self._turn.insert([(*head, *row[:4], ver, *row[4:]) for row in self._rows])


class Window:
    """The first deliveries of READY or of TIMER, in order."""

    def __init__(self, kind: int) -> None:
        self._kind = kind
        self._heap: list[tuple[Position, Entry]] = []
        self._horizon: Position | None = (-(1 << 62), 0)  # known up to here; None: to the end

    def _position(self, entry: Entry) -> Position:
        return (entry.prio if self._kind == READY else entry.at), entry.seq

    def add(self, entry: Entry) -> None:
        """Remember a delivery whose row is being written; beyond the horizon, leave it there."""
        position = self._position(entry)
        if self._horizon is None or position <= self._horizon:
            heapq.heappush(self._heap, (position, entry))

    def first(self, turn: Turn[Any], group: Group) -> Entry | None:
        """Return the first one there is."""
        if not self._heap:
            self._extend(turn, group)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Entry:
        """Take what `first` returned."""
        return heapq.heappop(self._heap)[1]

    def _extend(self, turn: Turn[Any], group: Group) -> None:
        if self._horizon is None:
            return
        n, seq = self._horizon
        rows = turn.select(
            statements.WINDOW, topic=group.topic, group=group.name, kind=self._kind,
            low=group.low, n=n, seq=seq, limit=_WINDOW,
        )  # fmt: skip
        self._horizon = (rows[-1][0], rows[-1][1]) if len(rows) == _WINDOW else None
        for n, seq, key, prio, at, attempts, error in rows:
            heapq.heappush(self._heap, ((n, seq), Entry(seq, key, prio, at, attempts, error)))

    @property
    def is_whole(self) -> bool:
        """Whether all there are are in memory."""
        return self._horizon is None

    def lowest(self) -> int | None:
        """Return the lowest seq of all; `None` if it is not known."""
        if self._horizon is not None:
            return None
        return min((entry.seq for _, entry in self._heap), default=1 << 63)


@dataclass(slots=True)
class Lane:
    """The first live deliveries of a key, in order: (seq, prio, schedule)."""

    members: deque[tuple[int, int, int]] = field(default_factory=deque)
    is_whole: bool = True

    def __bool__(self) -> bool:
        return bool(self.members)

    def append(self, seq: int, prio: int, due: int) -> None:
        if self.is_whole:
            self.members.append((seq, prio, due))

    def remove(self, seq: int) -> None:
        for member in self.members:  # nearly always the first
            if member[0] == seq:
                self.members.remove(member)
                return


class Log:
    """What comes after the cursor."""

    def __init__(self, *, has_news: bool = False) -> None:
        self.rows: deque[LogRow] = deque()
        self.ended = False  # within this claim, everything that was there has been read
        self.plain_upto = 0  # no message up to here has a priority
        self.has_news = has_news  # some message beyond may have one

    def first(self, turn: Turn[Any], group: Group, wanted: int) -> LogRow | None:
        """Return the next message."""
        if not self.rows and not self.ended:
            self._read(turn, group, wanted)
        return self.rows[0] if self.rows else None

    def _read(self, turn: Turn[Any], group: Group, wanted: int) -> None:
        limit = min(max(wanted, _WINDOW), 10 * _WINDOW)
        found = turn.select(
            statements.LOG, topic=group.topic, seq=group.cursor, limit=limit, bytes=_READ_AHEAD
        )
        self.rows.extend(LogRow(*row) for row in found)
        # Fewer, and not because they are so large.
        size = sum(len(row.payload.encode()) for row in self.rows)
        self.ended = len(found) < limit and size < _READ_AHEAD
        if found:
            if self.ended and not any(row.prio for row in self.rows):
                self.plain_upto = self.rows[-1].seq
            group.know_lanes(turn, {row.key for row in self.rows if row.key})

    def has_priorities(self, turn: Turn[Any], group: Group) -> bool:
        """Say whether any message after the cursor has one."""
        if any(row.prio for row in self.rows):
            return True
        if self.ended:
            return False
        after = max(self.plain_upto, group.cursor)
        if self.has_news or not self.plain_upto:
            ((last, count),) = turn.select(statements.AHEAD, topic=group.topic, seq=after)
            self.look(last, count)
        return self.has_news

    def look(self, last: int, priorities: int) -> None:
        """Note how many messages up to `last` have a priority, of those not looked at before."""
        self.has_news = priorities > 0
        if not priorities:
            self.plain_upto = max(self.plain_upto, last)


class Group:
    """A consumer group, as of the last turn of this process."""

    def __init__(
        self, topic: str, name: str, cursor: int, low: int, start: int, registered: int,
        checked: int, pins: str = "",
    ) -> None:  # fmt: skip
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.low = low
        self.start = start
        self.registered = registered
        self.checked = checked  # of what was stored before, it has missed nothing: see `late`
        # Messages that came late, and wait in their lane *before* its head: see raise_low.
        self.pins = {int(seq) for seq in pins.split(",") if seq}
        self.leased: dict[int, Lease] = {}
        self.forget()

    def forget(self) -> None:
        """Forget all but the leases: the server moved deliveries by itself."""
        self.ready = Window(READY)
        self.timers = Window(TIMER)
        self.lanes: dict[str, Lane] = {}
        self.log = Log()

    def begin(self) -> None:
        """Begin a claim: there may be news in the log."""
        self.log.ended = False
        if len(self.lanes) > _KNOWN_LANES:
            self.lanes = {key: lane for key, lane in self.lanes.items() if lane}

    def know_lanes(self, turn: Turn[Any], keys: Iterable[str]) -> None:
        """Read those lanes that are not known yet."""
        unknown = [key for key in keys if key not in self.lanes]
        self.lanes.update((key, Lane()) for key in unknown)
        for part in chunks(unknown):
            rows = turn.select(
                statements.LANES, topic=self.topic, group=self.name, keys=part, low=self.low,
                limit=_WINDOW,
            )  # fmt: skip
            for key, *member in rows:
                self.lanes[key].members.append(tuple(member))
        for key in unknown:
            self.lanes[key].is_whole = len(self.lanes[key].members) < _WINDOW

    def next_in_lane(self, turn: Turn[Any], key: str, after: int) -> tuple[int, int, int] | None:
        """Return the head of a lane."""
        lane = self.lanes[key]
        if not lane.members and not lane.is_whole:
            rows = turn.select(
                statements.LANE, topic=self.topic, group=self.name, key=key, seq=after,
                limit=_WINDOW,
            )  # fmt: skip
            lane.members.extend(tuple(member) for _, *member in rows)
            lane.is_whole = len(rows) < _WINDOW
        return lane.members[0] if lane.members else None

    def written_pins(self) -> str:
        """Write `pins` as the cursor's row keeps them."""
        return ",".join(map(str, sorted(self.pins)))

    def raise_low(self) -> None:
        """Raise the low mark to the first delivery that is not finished.

        Who waits in a lane has its head before him, which is ready, timed or leased.
        """
        lows = self.ready.lowest(), self.timers.lowest()
        if None not in lows:
            alive = [low for low in lows if low is not None]
            lowest = min(*alive, *self.leased, *self.pins, self.cursor + 1)
            self.low = max(self.low, lowest)


def load_group(turn: Turn[Group], topic: str, name: str) -> Group | None:
    """Return the group as it is; `None` if it was never registered."""
    if turn.seat.memory is None:
        rows = turn.select(statements.GROUP, topic=topic, group=name)
        if not rows:
            return None
        group = Group(topic, name, *rows[0])
        for seq, key, prio, end, token, attempts, error in turn.select(
            statements.LEASED, topic=topic, group=name, low=group.low
        ):
            group.leased[seq] = Lease(seq, key, prio, end, token, attempts, error)
        turn.seat.memory = group
    return turn.seat.memory
