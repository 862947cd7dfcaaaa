"""Call the functions of the PostgreSQL store: one statement for each operation.

Arrays go to the server in binary (`%b`) wherever the driver can: a third of the time for many
messages. Everything is cast, so that psycopg and psycopg2 mean the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import sqlalchemy as sa

from queue_lib.errors import UnsupportedError
from queue_lib.stores.schema import Tables
from queue_lib.stores.sql.dialect import AppendRow, ClaimRow, Held, StateCounts
from queue_lib.stores.sql.postgres.functions import FUNCTIONS
from queue_lib.stores.sql.postgres.listen import IN_TRANSACTION, sign

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
  %b::int[], %b::bigint[], %b::bigint[], %b::boolean[], %s, %s)"""
_ENSURE_GROUP = "SELECT {q}ensure_group_v1(%s, %s, %s, %s)"
_CLAIM = "SELECT * FROM {q}claim_v1(%s, %s, %s, %s, %s)"
_SETTLE = "SELECT {q}settle_v1(%s, %b::bigint[], %b::text[], %b::text[], %s, %s)"
_REQUEUE = "SELECT {q}requeue_v1(%s, %b::bigint[], %b::text[], %s, %s, %s, %s)"
_EXTEND = "SELECT {q}extend_v1(%s, %b::bigint[], %b::text[], %s, %s)"
_PURGE_DEAD = "SELECT {q}purge_dead_v1(%s, %s, %s)"
_PURGE_MESSAGES = "SELECT {q}purge_messages_v1(%s, %s, %s, %s)"
_COUNT = "SELECT * FROM {q}count_v1(%s, %s)"

_BATCH_BYTES = 16 << 20


class PostgresStatements:
    """The `Statements` of PostgreSQL."""

    peeks = False  # a claim that finds nothing writes nothing

    def __init__(self, tables: Tables) -> None:
        self._qualify = tables.qualify
        self._in_transaction = sign(tables, IN_TRANSACTION)
        self._functions = [tables.qualify(f"{{q}}{name}") for name in FUNCTIONS]

    def find_group(self, connection: sa.Connection, topic: str, group: str) -> int | None:
        found: int | None = self._scalar(connection, _FIND_GROUP, topic, group)
        return found

    def ensure_group(
        self, connection: sa.Connection, topic: str, group: str, earliest: bool, now: int | None
    ) -> None:
        self._scalar(connection, _ENSURE_GROUP, topic, group, earliest, now)

    def append(
        self,
        connection: sa.Connection,
        rows: Sequence[AppendRow],
        now: int | None,
        *,
        wake: str | None = None,
    ) -> None:
        signature = wake and self._in_transaction
        batches = list(_batches(rows))
        with _transaction(connection) if len(batches) > 1 and wake is None else nullcontext():
            if len(batches) > 1:
                # All the locks in their order, before the first batch takes its share of them.
                locked = self._scalar(connection, _LOCK, *_places(rows), _some(r.key for r in rows))
            for batch in batches:
                stored = self._append(connection, batch, signature, now)
        
        

    def peek(
        self, connection: sa.Connection, group_id: int, now: int | None
    ) -> tuple[bool, int | None]:
        return True, None
