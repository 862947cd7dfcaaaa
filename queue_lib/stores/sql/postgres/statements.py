"""Call the functions of the PostgreSQL store: one statement for each operation.

Arrays go to the server in binary (`%b`) wherever the driver can: a third of the time for many
messages. Everything is cast, so that psycopg and psycopg2 mean the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from queue_lib.errors import UnsupportedError
from queue_lib.stores.schema import Tables
from queue_lib.stores.sql.dialect import (
    AppendRow,
    ClaimAnswer,
    ClaimRow,
    Connection,
    Held,
    Rows,
    StateCounts,
)
from queue_lib.stores.sql.postgres.floors import NO_FLOOR, Floors
from queue_lib.stores.sql.postgres.functions import FUNCTIONS
from queue_lib.stores.sql.postgres.listen import sign

__all__ = ["PostgresStatements"]

_FIND_GROUP = """
SELECT g.id FROM {q}groups g JOIN {q}topics t ON t.id = g.topic_id
WHERE t.name = %s AND g.name = %s"""
_CHECK = """
SELECT exists(SELECT FROM {q}topics), exists(SELECT FROM {q}groups),
  exists(SELECT FROM {q}messages), exists(SELECT FROM {q}deliveries), %s::text[]::regproc[]"""
_LOCK = "SELECT {q}lock_v1(%b::text[], %b::int[], %b::text[])"
_APPEND = """
SELECT {q}append_v1(%b::text[], %b::int[], %b::text[], %b::text[], %b::bytea[], %b::text[],
  %b::int[], %b::bigint[], %b::bigint[], %b::boolean[], %s, %s, %s)"""
_ENSURE_GROUP = "SELECT {q}ensure_group_v1(%s, %s, %s, %s)"
_CLAIM = """
SELECT * FROM {q}claim_v1(
  %s, %b::bigint[], %b::text[], %b::text[], %s, %s, %s, %s, %s, %s, %s)"""
_PEEK = "SELECT * FROM {q}peek_v1(%b::int[], %s)"
_SETTLE = "SELECT {q}settle_v1(%s, %b::bigint[], %b::text[], %b::text[], %s, %s)"
_REQUEUE = "SELECT {q}requeue_v1(%s, %b::bigint[], %b::text[], %s, %s, %s, %s)"
_EXTEND = "SELECT {q}extend_v1(%s, %b::bigint[], %b::text[], %s, %s)"
_PURGE_DEAD = "SELECT {q}purge_dead_v1(%s, %s, %s)"
_PURGE_MESSAGES = "SELECT * FROM {q}purge_messages_v1(%s, %s, %s, %s, %s, %s)"
_COUNT = "SELECT * FROM {q}count_v1(%s, %s)"

_BATCH_BYTES = 16 << 20
_WINDOW = 50_000  # messages that one purge looks at: some 50 ms


class PostgresStatements:
    """The `Statements` of PostgreSQL."""

    peeks = False  # a claim that finds nothing writes nothing

    def __init__(self, tables: Tables) -> None:
        self._qualify = tables.qualify
        self._tables = tables
        self._floors = Floors()
        # Where the next purge goes on looking. Only a hint, of this process.
        self._purged_to = 0
        self._functions = [tables.qualify(f"{{q}}{name}") for name in FUNCTIONS]

    def find_group(self, connection: Connection, topic: str, group: str) -> int | None:
        row = self._execute(connection, _FIND_GROUP, topic, group).fetchone()
        return None if row is None else row[0]

    def ensure_group(
        self, connection: Connection, topic: str, group: str, earliest: bool, now: int | None
    ) -> None:
        self._scalar(connection, _ENSURE_GROUP, topic, group, earliest, now)

    def append(
        self,
        connection: Connection,
        rows: Sequence[AppendRow],
        now: int | None,
        *,
        borrowed: bool = False,
        sender: str = "",
    ) -> None:
        wake = sign(self._tables, sender) if sender else None
        if sum(map(_size, rows)) <= _BATCH_BYTES:
            stored = self._append(connection, rows, borrowed, wake, now)
        else:
            with nullcontext() if borrowed else _transaction(connection):
                stored = self._append_batches(connection, rows, borrowed, wake, now)
        if not stored:
            raise UnsupportedError(
                "a message with a key cannot be published in a transaction stricter than "
                "READ COMMITTED: its snapshot may be too old to know the message before it"
            )

    def _append_batches(
        self,
        connection: Connection,
        rows: Sequence[AppendRow],
        borrowed: bool,
        wake: str | None,
        now: int | None,
    ) -> bool:
        """Append more than fits well into memory; the locks of all batches come first, in order.

        The ids are in order only within a batch: two such calls with the same ids may deadlock,
        which is a transient error.
        """
        topics, nth = _topics(rows)
        keys = _unless_all_none([row.key for row in rows])
        locked = self._scalar(connection, _LOCK, topics, nth, keys)
        if locked is None and borrowed:
            return False
        return all(self._append(connection, batch, borrowed, wake, now) for batch in _batches(rows))

    def _append(
        self,
        connection: Connection,
        rows: Sequence[AppendRow],
        borrowed: bool,
        wake: str | None,
        now: int | None,
    ) -> bool:
        topics, nth = _topics(rows)
        _, ids, keys, payloads, headers, priorities, due, published, copies = _columns(rows)
        stored: bool = self._scalar(
            connection, _APPEND, topics, nth, ids, _unless_all_none(keys), payloads,
            _unless_all_none(headers), priorities, due, published,
            copies if any(copies) else None, borrowed, wake, now,
        )  # fmt: skip
        return stored

    def peek(
        self, connection: Connection, group_ids: Sequence[int], now: int | None
    ) -> list[tuple[bool, int | None]]:
        return list(self._execute(connection, _PEEK, list(group_ids), now).fetchall())

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
        seqs, tokens, keys = _columns(settled) if settled else (None, None, None)
        # Capped claims count every lease, so they have to look at all.
        floor = NO_FLOOR if max_in_flight > 0 else self._floors.of(group_id)
        found = self._execute(
            connection, _CLAIM, group_id, seqs, tokens, keys and _unless_all_none(keys),
            limit, lease, max_in_flight, *floor, now,
        ).fetchall()  # fmt: skip
        *_, next_due, took, held = found[-1]  # not a delivery
        rows = [ClaimRow._make(row[:-1]) for row in found[:-1]]
        self._floors.learn(group_id, floor, rows if len(rows) == limit else [], took)
        return ClaimAnswer(rows, next_due, set(held or ()))

    def settle(
        self,
        connection: Connection,
        group_id: int,
        claims: Sequence[Held],
        error: str | None,
        now: int | None,
    ) -> set[int]:
        seqs, tokens, keys = _columns(claims)
        return self._held(
            connection, _SETTLE, group_id, seqs, tokens, _unless_all_none(keys), error, now
        )

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
        seqs, tokens, _ = _columns(claims)
        return self._held(connection, _REQUEUE, group_id, seqs, tokens, backoff, error, spend, now)

    def extend(
        self,
        connection: Connection,
        group_id: int,
        claims: Sequence[Held],
        lease: int,
        now: int | None,
    ) -> set[int]:
        seqs, tokens, _ = _columns(claims)
        return self._held(connection, _EXTEND, group_id, seqs, tokens, lease, now)

    def purge_dead(
        self, connection: Connection, retention: int, batch: int, now: int | None
    ) -> int:
        gone: int = self._scalar(connection, _PURGE_DEAD, retention, batch, now)
        return gone

    def purge_messages(
        self,
        connection: Connection,
        retention: int,
        dead_retention: int,
        batch: int,
        now: int | None,
    ) -> int:
        gone, self._purged_to = self._execute(
            connection, _PURGE_MESSAGES, retention, dead_retention, batch, self._purged_to,
            _WINDOW, now,
        ).fetchone()  # fmt: skip
        return int(gone)

    def count(self, connection: Connection, group_id: int, now: int | None) -> StateCounts:
        return StateCounts._make(self._execute(connection, _COUNT, group_id, now).fetchone())

    def check(self, connection: Connection) -> None:
        self._execute(connection, _CHECK, self._functions)

    # -- inside ----------------------------------------------------------------------------

    def _execute(self, connection: Connection, text: str, *parameters: Any) -> Rows:
        return connection.execute(self._qualify(text), parameters)

    def _scalar(self, connection: Connection, text: str, *parameters: Any) -> Any:
        return self._execute(connection, text, *parameters).fetchone()[0]

    def _held(self, connection: Connection, text: str, *parameters: Any) -> set[int]:
        return set(self._scalar(connection, text, *parameters))


def _transaction(connection: Connection) -> AbstractContextManager[Any]:
    """Open a transaction on a connection of our own, which is on autocommit."""
    driver: Any = connection
    context: AbstractContextManager[Any] = driver.transaction()
    return context


def _topics(rows: Sequence[AppendRow]) -> tuple[list[str], list[int] | None]:
    """Return the distinct topics, sorted, and each row's number in them, from 1."""
    names = sorted({row.topic for row in rows})
    if len(names) == 1:
        return names, None
    number = {name: nth for nth, name in enumerate(names, 1)}
    return names, [number[row.topic] for row in rows]


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _unless_all_none(values: list[Any]) -> list[Any] | None:
    """Return the column, or `None` for one of nulls: shorter, and the functions ask for it."""
    return None if all(value is None for value in values) else values


def _size(row: AppendRow) -> int:
    return len(row.payload) + len(row.headers or "")


def _batches(rows: Sequence[AppendRow]) -> Iterator[Sequence[AppendRow]]:
    """Cut the rows, in order, into pieces of about `_BATCH_BYTES`."""
    start = size = 0
    for end, row in enumerate(rows):
        size += _size(row)
        if size > _BATCH_BYTES and end > start:
            yield rows[start:end]
            start, size = end, _size(row)
    yield rows[start:]
