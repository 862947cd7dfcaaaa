"""Run the statements of `statements.sql`, in the order in which each operation needs them.

The texts go to the driver as they are: nothing is compiled on the way, and what is reviewed is
what runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from queue_lib.stores.schema import Tables
from queue_lib.stores.sql import sqlfile
from queue_lib.stores.sql.dialect import (
    AppendRow,
    ClaimAnswer,
    ClaimRow,
    Connection,
    Held,
    Rows,
    StateCounts,
)

__all__ = ["SqliteStatements", "all_or_nothing", "render"]

_TEXTS = sqlfile.load(__package__)

_SLICE = 1_000  # timers and leases that one claim ends, if it does not want more: some 5 ms
_WINDOW = 50_000  # messages that one purge looks at: some 50 ms


def render(tables: Tables) -> dict[str, str]:
    """Return the texts for these tables."""
    fragments = {name: _TEXTS[name] for name in ("now", "held")}
    texts = {}
    for name, text in _TEXTS.items():
        for fragment, value in fragments.items():
            text = text.replace(f"{{{fragment}}}", value)
        texts[name] = tables.qualify(text).replace("{p}", tables.prefix)
    return texts


class SqliteStatements:
    """The `Statements` of SQLite."""

    peeks = True  # finding nothing must not take the one write lock

    def __init__(self, tables: Tables) -> None:
        self._sql = render(tables)
        # Where the next purge goes on looking. Only a hint, of this process: without it, messages
        # that nobody consumes would be walked again by every purge, under the write lock.
        self._purged_to = 0

    # -- publish ---------------------------------------------------------------------------

    def append(
        self,
        connection: Connection,
        rows: Sequence[AppendRow],
        now: int | None,
        *,
        borrowed: bool = False,
        sender: str = "",
    ) -> None:
        # There is no sender: others see the commit itself.
        if borrowed:
            with all_or_nothing(connection):
                self._append(connection, rows, now)
        else:
            self._append(connection, rows, now)

    def _append(self, connection: Connection, rows: Sequence[AppendRow], now: int | None) -> None:
        topics: dict[str, tuple[Any, ...]] = {}
        for row in rows:
            if row.topic not in topics:
                topics[row.topic] = self._topic(connection, row.topic, now)
        _, _, last, stored_at = topics[rows[0].topic]
        values = [_values(row, topics[row.topic], stored_at) for row in rows]
        connection.executemany(self._sql["add_message"], values)
        if not any(is_consumed for _, is_consumed, _, _ in topics.values()):
            return
        if any(row.key is not None for row in rows):
            self._run(connection, "fan_out", after=last, group=0, now=stored_at)
        else:
            self._run(connection, "fan_out_unkeyed", after=last, now=stored_at)

    # -- consume ---------------------------------------------------------------------------

    def find_group(self, connection: Connection, topic: str, group: str) -> int | None:
        row = self._one(connection, "find_group", topic=topic, group=group)
        return None if row is None else row[0]

    def ensure_group(
        self, connection: Connection, topic: str, group: str, earliest: bool, now: int | None
    ) -> None:
        topic_id = self._topic(connection, topic, now)[0]
        new = self._one(connection, "add_group", topic=topic_id, group=group, now=now)
        if new is not None and earliest:
            group_id, created_at = new
            self._run(connection, "fan_out", after=0, group=group_id, now=created_at)
            self._run(connection, "mark_taken", topic=topic_id)

    def peek(
        self, connection: Connection, group_ids: Sequence[int], now: int | None
    ) -> list[tuple[bool, int | None]]:
        found = self._rows(connection, "peek", groups=json.dumps(group_ids), now=now)
        return [
            (bool(ready) or _has_ended(timer, 0) or _has_ended(lease, -1), timer)
            for ready, timer, lease in found
        ]

    def claim(
        self,
        connection: Connection,
        group_id: int,
        settled: Sequence[Held],
        limit: int,
        lease: int,
        max_in_flight: int,
        now: int | None,
    ) -> ClaimAnswer:
        held = self.settle(connection, group_id, settled, None, now) if settled else set()
        group = {"group": group_id, "now": now}
        room = limit
        if max_in_flight > 0:
            (live,) = self._column(connection, "live_leases", **group)
            room = max(min(limit, max_in_flight - live), 0)
        claim = {"lease": lease, **group}
        seqs = self._column(connection, "claim", limit=room, always=False, **claim)
        timer = None
        if len(seqs) < limit:
            alone = json.dumps([group_id])
            _, timer, lease_end = self._one(connection, "peek", groups=alone, now=now)
            timers, leases = _has_ended(timer, 0), _has_ended(lease_end, -1)
            if timers:
                self._run(connection, "end_timers", slice=max(limit, _SLICE), **group)
                timer = self._one(connection, "peek", groups=alone, now=now)[1]
            if leases:
                self._run(connection, "end_leases", slice=max(limit, _SLICE), **group)
            if timers or leases:
                left = room - len(seqs)
                seqs += self._column(connection, "claim", limit=left, always=True, **claim)
        rows: list[ClaimRow] = []
        if seqs:
            found = self._rows(connection, "claimed", group=group_id, seqs=json.dumps(seqs))
            rows = sorted(map(ClaimRow._make, found), key=lambda row: (row.priority, row.seq))
        if len(rows) == limit:
            timer = None
        return ClaimAnswer(rows, timer, held)

    def settle(
        self,
        connection: Connection,
        group_id: int,
        claims: Sequence[Held],
        error: str | None,
        now: int | None,
    ) -> set[int]:
        held = {"group": group_id, "claims": _by_token(claims), "now": now}
        if error is None:
            gone = self._rows(connection, "ack", **held)
        else:
            gone = self._rows(connection, "kill", error=error, **held)
        if lanes := {key for _, key in gone if key is not None}:
            texts = json.dumps(list(lanes), ensure_ascii=False)
            self._run(connection, "promote", group=group_id, lanes=texts, now=now)
        return {seq for seq, _ in gone}

    def requeue(
        self,
        connection: Connection,
        group_id: int,
        claims: Sequence[Held],
        backoff: int,
        error: str | None,
        spend: int,
        now: int | None,
    ) -> set[int]:
        held = {"group": group_id, "claims": _by_token(claims), "now": now}
        change = {"backoff": backoff, "error": error, "spend": spend}
        return set(self._column(connection, "requeue", **held, **change))

    def extend(
        self,
        connection: Connection,
        group_id: int,
        claims: Sequence[Held],
        lease: int,
        now: int | None,
    ) -> set[int]:
        held = {"group": group_id, "claims": _by_token(claims), "now": now}
        return set(self._column(connection, "extend", lease=lease, **held))

    # -- upkeep ----------------------------------------------------------------------------

    def purge_dead(
        self, connection: Connection, retention: int, batch: int, now: int | None
    ) -> int:
        policy = {"retention": retention, "batch": batch, "now": now}
        gone: int = self._run(connection, "purge_dead", **policy).rowcount
        return gone

    def purge_messages(
        self,
        connection: Connection,
        retention: int,
        dead_retention: int,
        batch: int,
        now: int | None,
    ) -> int:
        after = self._purged_to
        window = {"after": after, "window": _WINDOW}
        policy = {"retention": retention, "dead_retention": dead_retention, "batch": batch}
        found = self._rows(connection, "spent_messages", **window, **policy, now=now)
        first_young = min((seq for seq, is_young in found if is_young), default=None)
        spent = [seq for seq, _ in found if first_young is None or seq < first_young]
        if spent:
            self._run(connection, "delete_messages", seqs=json.dumps(spent))
        if first_young is not None:
            self._purged_to = 0  # all that is old enough was looked at: start over
        elif len(found) == batch:
            self._purged_to = max(spent)
        else:
            end = self._one(connection, "window_end", **window)
            self._purged_to = 0 if end is None else end[0]
        return len(spent)

    def count(self, connection: Connection, group_id: int, now: int | None) -> StateCounts:
        return StateCounts._make(self._one(connection, "count", group=group_id, now=now))

    def check(self, connection: Connection) -> None:
        self._one(connection, "check")

    # -- inside ----------------------------------------------------------------------------

    def _run(self, connection: Connection, name: str, **values: Any) -> Rows:
        return connection.execute(self._sql[name], values)

    def _rows(self, connection: Connection, name: str, **values: Any) -> Sequence[Any]:
        return self._run(connection, name, **values).fetchall()

    def _one(self, connection: Connection, name: str, **values: Any) -> Any:
        rows = self._rows(connection, name, **values)
        return rows[0] if rows else None

    def _column(self, connection: Connection, name: str, **values: Any) -> list[Any]:
        return [value for (value,) in self._rows(connection, name, **values)]

    def _topic(self, connection: Connection, name: str, now: int | None) -> tuple[Any, ...]:
        """Return what `find_topic` tells of a topic, registering it if need be."""
        found = self._one(connection, "find_topic", topic=name, now=now)
        if found is None:
            self._run(connection, "add_topic", topic=name)
            found = self._one(connection, "find_topic", topic=name, now=now)
        return tuple(found)


def _values(row: AppendRow, topic: tuple[Any, ...], stored_at: int) -> tuple[Any, ...]:
    """Return the parameters of ``add_message``."""
    topic_id, is_consumed, *_ = topic
    untaken = row.dead_letter and not is_consumed
    return (row.id, topic_id, *row[2:8], stored_at, untaken)


def _has_ended(left: int | None, most: int) -> bool:
    """Say whether something with an end has no more than `most` µs left."""
    return left is not None and left <= most


def _by_token(claims: Sequence[Held]) -> str:
    """Return what ``{held}`` compares with; no two claims have one token, unless it is forged."""
    return json.dumps({claim.token: claim.seq for claim in claims})


@contextmanager
def all_or_nothing(connection: Connection) -> Iterator[None]:
    """Undo what an error leaves half done, inside a transaction that somebody else will end."""
    connection.execute("SAVEPOINT queue_lib")
    try:
        yield
    except BaseException:
        with suppress(Exception):  # a full disk ends the whole transaction, savepoints too
            connection.execute("ROLLBACK TO queue_lib")
            connection.execute("RELEASE queue_lib")
        raise
    connection.execute("RELEASE queue_lib")
