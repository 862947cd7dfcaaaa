"""Short words for the common steps of these tests."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from queue_lib.stores.schema import build_tables
from queue_lib.stores.sql.dialect import AppendRow, ClaimRow, Connection, Held
from queue_lib.stores.sql.sqlite import SqliteDatabase, SqliteStatements

TABLES = build_tables()
DEADLINE = 20.0
NOW = 1_900_000_000_000_000
SECOND = 1_000_000


def message(name: str, *, topic: str = "orders", **fields: Any) -> AppendRow:
    given = {
        "key": None,
        "payload": b"",
        "headers": None,
        "priority": 0,
        "deliver_at": 0,
        "published_at": NOW,
        "dead_letter": False,
        **fields,
    }
    return AppendRow(topic=topic, id=name, **given)


def held(rows: Sequence[ClaimRow]) -> list[Held]:
    return [Held(row.seq, row.token, row.key) for row in rows]


class Queue:
    """One group, by direct calls of the statements, on a clock that a test moves."""

    def __init__(self, database: SqliteDatabase) -> None:
        self.database = database
        self.sql = SqliteStatements(TABLES)
        self.now = NOW
        self.group = self.register("billing")

    def register(self, group: str, *, topic: str = "orders", earliest: bool = False) -> int:
        write = self.database.write_durably
        write(self.sql.ensure_group, topic, group, earliest, self.now)
        found = self.database.read(self.sql.find_group, topic, group)
        assert found is not None
        return found

    def append(self, *rows: AppendRow) -> None:
        self.database.write_durably(self.sql.append, rows, self.now)

    def claim(
        self, limit: int = 100, *, lease: int = 30 * SECOND, cap: int = 0
    ) -> tuple[list[ClaimRow], int | None]:
        rows, next_due, _ = self.database.write(
            self.sql.claim, self.group, [], limit, lease, cap, self.now
        )
        return rows, next_due

    def claimed(self, limit: int = 100, **options: int) -> list[str | None]:
        return [row.id for row in self.claim(limit, **options)[0]]

    def settle(self, rows: Sequence[ClaimRow], error: str | None = None) -> set[int]:
        return self.database.write(self.sql.settle, self.group, held(rows), error, self.now)

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        """Run a query of the test's own; {q} is the prefix."""

        def query(connection: Connection) -> list[tuple[Any, ...]]:
            return list(connection.execute(TABLES.qualify(text)).fetchall())

        return self.database.read(query)


@contextmanager
def write_lock(url: sa.URL) -> Iterator[sqlite3.Connection]:
    """Hold the write lock as another process would: on a connection of nobody's pool."""
    assert url.database is not None
    other = sqlite3.connect(url.database, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield other
    finally:
        with suppress(sqlite3.Error):
            other.execute("ROLLBACK")
        other.close()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do."""
    give_up = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < give_up, "it did not happen"
        time.sleep(0.001)


def open_files(url: sa.URL) -> int:
    """Count what this process has open of a database: its file, the WAL and the index of that."""
    assert url.database is not None
    links = Path("/proc/self/fd").iterdir()
    return sum(str(link.resolve()).startswith(url.database) for link in links)
