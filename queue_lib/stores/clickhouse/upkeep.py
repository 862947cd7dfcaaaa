"""Counting, and deleting what has outlived its use.

The only deletes and mutations of this store are here, on the janitor's thread.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from queue_lib.stores.base import GroupStats, Stats
from queue_lib.stores.clickhouse import statements
from queue_lib.stores.clickhouse.codec import chunks
from queue_lib.stores.clickhouse.late import SLOWEST_INSERT, find_missed
from queue_lib.stores.clickhouse.turns import Turn, Turns

__all__ = ["Upkeep"]

_SWEEP_LEAST = 20_000  # deliveries that ended are worth the mutations
_SWEEP_AGE = 2 * SLOWEST_INSERT  # µs: who looks for what came late needs the tombstones


class _Live(NamedTuple):
    """What is counted in `live`."""

    ready: int
    scheduled: int
    retrying: int
    in_lanes: int
    heads: int
    leased: int
    dead: int
    oldest: int
    registered: int  # 0: there is no such group
    cursor: int
    since: int


class Upkeep:
    """Purges and counts. Thread-safe."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    # -- counting --------------------------------------------------------------------------

    def stats(self, topic: str, group: str) -> Stats:
        """See `Store.stats`."""
        live = self._live(topic, group, self._turns.clock.earliest())
        if not live.registered:
            return Stats()
        ((beyond,),) = self._select(statements.COUNT_LOG, topic=topic, cursor=live.cursor)
        known = live.ready + live.scheduled + live.retrying + live.in_lanes - live.heads
        return Stats(pending=known + beyond, leased=live.leased, dead=live.dead)

    def group_stats(self, topic: str, group: str) -> GroupStats:
        """See `DetailedStats.group_stats`."""
        now = self._turns.clock.earliest()
        live = self._live(topic, group, now)
        if not live.registered:
            return GroupStats()
        ((ready, scheduled, behind, oldest),) = self._select(
            statements.COUNT_LOG_CLOSELY, topic=topic, group=group, cursor=live.cursor, now=now
        )
        # A backfill is due since its group is there.
        since = [live.oldest] * (live.ready > 0) + [max(oldest, live.since)] * (ready > 0)
        return GroupStats(
            ready=live.ready + ready,
            scheduled=live.scheduled + scheduled,
            retrying=live.retrying,
            behind_key=live.in_lanes - live.heads + behind,
            leased=live.leased,
            dead=live.dead,
            oldest_ready_age=timedelta(microseconds=max(now - min(since), 0)) if since else None,
        )

    def _live(self, topic: str, group: str, now: int) -> _Live:
        (row,) = self._select(statements.COUNT_LIVE, topic=topic, group=group, now=now)
        return _Live(*row)

    # -- purge -----------------------------------------------------------------------------

    def purge(self, dead_retention: int, acked_retention: int, batch: int) -> int:
        """See `Store.purge`; retentions in µs."""
        now = self._turns.clock.earliest()
        dead_before, acked_before = now - dead_retention, now - acked_retention
        gone = 0
        if self._turns.is_shared:
            for topic, group in self._select(statements.DEAD_GROUPS, before=dead_before):
                if gone < batch:
                    where = {"topic": topic, "group": group, "before": dead_before}
                    work = partial(_forget_dead, **where, limit=batch - gone)
                    gone += self._turns.group(topic, group, work)
            find_missed(self._turns)
            self._sweep(now - _SWEEP_AGE)
        return gone + self._turns.publish(
            lambda turn: _forget_messages(turn, dead_before, acked_before, batch)
        )

    def _sweep(self, before: int) -> None:
        """Remove the rows of deliveries that ended before an instant, where there are many.

        Without a lock: nobody looks at them any more. `find_missed` has just been here, so that
        whoever looks for what a group missed does not look so far back.
        """
        turns = self._turns
        for topic, group in self._select(statements.SWEEPABLE, before=before, least=_SWEEP_LEAST):
            for statement in statements.SWEEP:
                where = {"topic": topic, "group": group, "before": before}
                turns.database.command(turns.sql.fill(statement, **where))

    def _select(self, template: str, **values: Any) -> list[Any]:
        turns = self._turns
        return turns.database.select(turns.sql.fill(template, **values))


def _forget_dead(turn: Turn[Any], *, before: int, limit: int, **group: str) -> int:
    found = turn.select(statements.OLD_DEAD, before=before, limit=limit, **group)
    for part in chunks(seq for (seq,) in found):
        turn.command(statements.FORGET_DEAD, seqs=part, **group)
    return len(found)


def _forget_messages(turn: Turn[Any], dead_before: int, before: int, limit: int) -> int:
    """Delete messages that nobody needs.

    Under the publishers' lock, as registrations are: no group can come to need one meanwhile.
    """
    found = turn.select(statements.PURGEABLE, dead_before=dead_before, before=before, limit=limit)
    topics: dict[str, list[int]] = {}
    for topic, seq in found:
        topics.setdefault(topic, []).append(seq)
    for topic, seqs in topics.items():
        for part in chunks(seqs):
            turn.command(statements.PURGE, topic=topic, seqs=part)
    return len(found)
