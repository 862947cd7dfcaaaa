"""Publishing: one INSERT for whoever is publishing in this process at the moment.

All publishers share one lock, whatever their topics: ids are unique across topics, a call may name
several, and sequence numbers become visible in their order, so that a claimer that has read up to
one has missed nothing before it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from queue_lib.stores.clickhouse import statements
from queue_lib.stores.clickhouse.codec import chunks
from queue_lib.stores.clickhouse.late import give
from queue_lib.stores.clickhouse.schema import MESSAGE_COLUMNS
from queue_lib.stores.clickhouse.turns import Turn, Turns

__all__ = ["AppendRow", "Publisher"]

_TOGETHER = 50_000  # messages of several callers in one INSERT
_TOGETHER_BYTES = 64 << 20
_SLOW = 0.25  # seconds: no locker's lock ends sooner by itself


class AppendRow(NamedTuple):
    """A message to store."""

    topic: str
    id: str
    key: str
    prio: int
    due: int
    published: int
    dead_letter: int
    headers: str
    payload: str


class _Call:
    """One caller's messages, and what became of them."""

    def __init__(self, rows: Sequence[AppendRow]) -> None:
        self.rows = rows
        self.size = sum(len(row.payload) for row in rows)
        self.event = threading.Event()  # it is done, or it is its turn to lead
        self.is_done = False
        self.error: BaseException | None = None


class Publisher:
    """Group commit: one caller at a time inserts for all who came meanwhile. Thread-safe."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a forked child must."""
        self._mutex = threading.Lock()
        self._is_led = False  # guarded by _mutex
        self._calls: list[_Call] = []  # guarded by _mutex; the first one's caller leads next

    def append(self, rows: Sequence[AppendRow]) -> None:
        """Store the messages that are new: all or none."""
        call = _Call(rows)
        with self._mutex:
            self._calls.append(call)
            if not self._is_led:
                self._is_led = True
                call.event.set()
        call.event.wait()
        if not call.is_done:
            try:
                self._lead(self._take())
            finally:
                self._hand_over()
        if call.error is not None:
            raise call.error

    def _hand_over(self) -> None:
        with self._mutex:
            if self._calls:
                self._calls[0].event.set()
            else:
                self._is_led = False

    def _take(self) -> list[_Call]:
        with self._mutex:
            count = rows = size = 0
            for call in self._calls:
                rows += len(call.rows)
                size += call.size
                if count and (rows > _TOGETHER or size > _TOGETHER_BYTES):
                    break
                count += 1
            taken, self._calls = self._calls[:count], self._calls[count:]
        return taken

    def _lead(self, calls: list[_Call]) -> None:
        rows: dict[str, AppendRow] = {}
        for call in calls:
            for row in call.rows:
                rows.setdefault(row.id, row)  # the first of equal ids wins
        try:
            late = self._turns.publish(lambda turn: _store(turn, rows))
            for topic, seqs in late.items():
                give(self._turns, topic, seqs)
        except BaseException as error:  # noqa: BLE001 - every caller raises it
            for call in calls:
                call.error = error
        finally:
            for call in calls:
                call.is_done = True
                call.event.set()


def _store(turn: Turn[None], rows: dict[str, AppendRow]) -> dict[str, list[int]]:
    """Insert the new messages; return those that may have come too late, by topic.

    Between the server's look at the fence and the moment when the rows are visible somebody may
    have come in, if our lock ran out just then: his messages have higher numbers, and a claimer
    that has seen them looks no further back. If he has, his fence is on record by now.
    """
    known = {id_ for part in chunks(rows) for (id_,) in turn.select(statements.IDS, ids=part)}
    new = [row for id_, row in rows.items() if id_ not in known]
    if not new:
        return {}
    seq, stored = turn.number(len(new)), turn.clock.latest()
    turn.check()
    turn.database.insert(
        turn.sql.messages,
        MESSAGE_COLUMNS,
        [
            (row.topic, number, row.id, row.key, row.prio, row.due, row.published, stored,
             row.dead_letter, row.headers, row.payload)
            for number, row in enumerate(new, seq)
        ],
    )  # fmt: skip
    late: dict[str, list[int]] = {}
    if turn.is_superseded(after=_SLOW):
        for number, row in enumerate(new, seq):
            late.setdefault(row.topic, []).append(number)
    return late
