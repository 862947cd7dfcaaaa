"""Messages that came late: below the cursor of a group that has never seen them.

The server looks at the fence before it stores a block. If the publisher's lock runs out between
the two, somebody else may publish meanwhile, and a group pass on to his messages, whose numbers
are higher; then the block lands behind the group's back. The publisher himself looks for that, and
gives the messages to the groups at once. He may be killed before he does: so the janitor looks,
too, at all that was stored since it last looked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import starmap
from typing import Any

from queue_lib.stores.clickhouse import statements
from queue_lib.stores.clickhouse.codec import chunks
from queue_lib.stores.clickhouse.group import Entry, Group, LogRow, Rows, load_group
from queue_lib.stores.clickhouse.turns import Turn, Turns

__all__ = ["SLOWEST_INSERT", "find_missed", "give"]

SLOWEST_INSERT = 300_000_000
"""µs: no block of messages lands so long after its time stamp. A publisher that is stopped before
its INSERT does not count: the fence refuses it."""

_BETWEEN = 60_000_000  # µs: no group is looked at more often


def give(turns: Turns, topic: str, seqs: Sequence[int]) -> None:
    """Give messages that may have come late to those groups whose cursors had passed them."""
    query = turns.sql.fill(statements.GROUPS_BEYOND, topic=topic, seq=min(seqs))
    for (name,) in turns.database.select(query):
        turns.group(topic, name, partial(_give, topic=topic, name=name, seqs=seqs))


def find_missed(turns: Turns) -> None:
    """Look in every group for messages that it has missed since somebody last looked.

    Without the group's lock, which the search would hold up: the cursor is read first, and
    everything at or below it that the group has seen has a row, as a tombstone at least. What
    lands during the search is found by the next one, which begins `SLOWEST_INSERT` earlier.
    """
    began = turns.clock.earliest()
    due = turns.sql.fill(statements.UNCHECKED, before=began - _BETWEEN)
    for topic, name, cursor, start, checked in turns.database.select(due):
        search = turns.sql.fill(
            statements.MISSED, topic=topic, group=name, start=start, cursor=cursor,
            since=checked - SLOWEST_INSERT,
        )  # fmt: skip
        seqs = [seq for (seq,) in turns.database.select(search)]
        turns.group(
            topic, name, partial(_give, topic=topic, name=name, seqs=seqs, checked=began)
        )  # fmt: skip


def _give(turn: Turn[Any], topic: str, name: str, seqs: Sequence[int], checked: int = 0) -> None:
    """Make those messages ready that are below the cursor and that the group has never seen.

    `checked`: when the search began that found them; it is noted in the same block.
    """
    group: Group | None = load_group(turn, topic, name)
    if group is None:
        return
    rows = Rows(turn, group)
    missed = _missed(turn, group, seqs)
    now = turn.clock.earliest()
    for seq, _id, key, prio, due, *_ in missed:
        has_lane = False
        if key:
            group.know_lanes(turn, [key])
            has_lane = bool(group.lanes[key])
            rows.lane(key, seq, prio, due)
            group.lanes[key].append(seq, prio, due)
        if has_lane:
            group.pins.add(seq)
        else:
            entry = Entry(seq, key, prio, max(now, due))
            (rows.timer if due > now else rows.ready)(entry)
    if missed:
        group.low = min(group.low, missed[0].seq)
        turn.seat.memory = None  # what it remembers begins above the new low mark
    if missed or checked > group.checked:
        group.checked = max(group.checked, checked)
        rows.group()
        rows.insert()


def _missed(turn: Turn[Any], group: Group, seqs: Sequence[int]) -> list[LogRow]:
    """Return those of the messages that the group has never seen, in order.

    Only of what was stored since somebody last looked: of older ones the tombstones may be gone.
    Whoever comes with such a one has been stopped meanwhile, and a janitor has given it.
    """
    found: list[LogRow] = []
    for part in chunks(seq for seq in seqs if group.start < seq <= group.cursor):
        where = {"topic": group.topic, "seqs": part}
        seen = {seq for (seq,) in turn.select(statements.SEEN, group=group.name, **where)}
        unseen = [seq for seq in part if seq not in seen]
        if unseen:
            rows = turn.select(statements.BODIES, topic=group.topic, seqs=unseen)
            found += [
                row for row in starmap(LogRow, rows) if row.stored >= group.checked - SLOWEST_INSERT
            ]
    return sorted(found)
