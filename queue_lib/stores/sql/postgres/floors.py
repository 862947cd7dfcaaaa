"""Where a claim may begin to look, while no vacuum removes what is dead.

A transaction that stays open (a dump, a forgotten session, a replication slot) keeps each row that
was ever claimed in the indexes, and each claim walks all of them: 200,000 take 15 to 60 ms. A
consumer knows better where the living ones begin: behind what it took last. That is a hint only,
see ``claim_v1``: what comes in below it is found by the next claim that looks at all, once a second
and whenever there is less than was asked for. As long as claims are fast, there are no hints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from queue_lib.stores.sql.dialect import ClaimRow

__all__ = ["NO_FLOOR", "Floor", "Floors"]

_SLOW_MICROSECONDS = 5_000  # on a healthy table a claim of 256 looks for 1 ms
_LOOK_AT_ALL_SECONDS = 1.0
_MARGIN_SECONDS = 0.1  # two calls are not equally long on their way to the server


class Floor(NamedTuple):
    """The hints of one claim."""

    priority: int | None
    seq: int | None
    age: int | None  # µs since all were looked at


NO_FLOOR = Floor(None, None, None)


class Floors:
    """The hints of one process, by group. Thread-safe: each change is one assignment."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[int, tuple[int, int, float]] = {}

    def of(self, group_id: int) -> Floor:
        """Return the hints for the next claim of a group."""
        known = self._known.get(group_id)
        if known is None:
            return NO_FLOOR
        priority, seq, looked = known
        age = self._clock() - looked
        if age > _LOOK_AT_ALL_SECONDS:
            return NO_FLOOR
        return Floor(priority, seq, round((age + _MARGIN_SECONDS) * 1e6))

    def learn(self, group_id: int, used: Floor, rows: Sequence[ClaimRow], took: int) -> None:
        """Take in what a claim found: `rows` if it was full, and how many µs it looked."""
        known = self._known.get(group_id)
        if not rows or (used is NO_FLOOR and took < _SLOW_MICROSECONDS):
            if known is not None:
                self._known.pop(group_id, None)
            return
        last = rows[-1]
        if used is NO_FLOOR:
            # All were looked at when it began, which was `took` ago or longer.
            self._known[group_id] = (last.priority, last.seq, self._clock() - took / 1e6)
        elif known is not None:
            self._known[group_id] = (last.priority, last.seq, known[2])
