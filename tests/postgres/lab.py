"""Steps and observations for the tests of the PostgreSQL store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import sqlalchemy as sa

from queue_lib.message import Message
from queue_lib.options import StartFrom
from queue_lib.stores.base import ClaimBatch, Claimed, ClaimRequest
from queue_lib.stores.schema import Tables
from queue_lib.stores.sql.postgres import PostgresDatabase, PostgresStatements
from queue_lib.stores.sql.store import SqlStore, StoreClock

T = TypeVar("T")

TOPIC, GROUP = "orders", "billing"
DEADLINE = 20.0
LEASE = timedelta(seconds=30)

_WAITING = "SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted"


def message(id: str, key: str = "", *, topic: str = TOPIC, **fields: Any) -> Message:
    return Message(topic, b"x", key, id, published_at=datetime.now(UTC), **fields)


class Lab:
    """A host's engine, and what its tests do beside it."""

    def __init__(self, host: sa.Engine, tables: Tables) -> None:
        self.host = host
        self.tables = tables
        self._stores: list[SqlStore] = []
        self._watcher = host.execution_options(isolation_level="AUTOCOMMIT").connect()
        self._threads = ThreadPoolExecutor(16, thread_name_prefix="lab")

    def close(self) -> None:
        self._threads.shutdown()
        self._watcher.close()
        for store in self._stores:
            store.close()

    # -- stores ----------------------------------------------------------------------------

    def store(
        self,
        target: sa.Engine | sa.URL | None = None,
        *,
        clock: StoreClock | None = None,
        **options: Any,
    ) -> SqlStore:
        """Open a store that the lab closes; without `target` on the host's URL."""
        database = PostgresDatabase(target or self.host.url, self.tables, **options)
        store = SqlStore(database, PostgresStatements(self.tables), clock=clock)
        self._stores.append(store)
        return store

    def claim(
        self, store: SqlStore, max: int = 10, *, group: str = GROUP, topic: str = TOPIC,
        cap: int = 0, lease: timedelta = LEASE,
    ) -> ClaimBatch:  # fmt: skip
        return store.claim(ClaimRequest(topic, group, "runner", max, lease, cap))

    def register(self, store: SqlStore, group: str = GROUP, *, earliest: bool = False) -> None:
        store.ensure_group(TOPIC, group, StartFrom.EARLIEST if earliest else StartFrom.LATEST)

    # -- interleavings ---------------------------------------------------------------------

    @contextmanager
    def transaction(self, isolation: str = "READ COMMITTED") -> Iterator[sa.Connection]:
        """A transaction of the host; rolled back unless the test commits it."""
        with self.host.execution_options(isolation_level=isolation).connect() as connection:
            yield connection

    def start(self, work: Callable[[], T]) -> Future[T]:
        """Run something in a thread."""
        return self._threads.submit(work)

    def start_blocked(self, work: Callable[[], T], behind: sa.Connection) -> Future[T]:
        """Run something in a thread, and return when its backend waits for `behind`."""
        pid = pid_of(behind)
        before = self._blocked_by(pid)
        future = self.start(work)
        eventually(lambda: future.done() or self._blocked_by(pid) > before)
        if future.done():
            raise AssertionError(f"it did not wait: {future.exception() or future.result()}")
        return future

    def _blocked_by(self, pid: int) -> int:
        found: int = self.ask(
            "SELECT count(*) FROM pg_stat_activity a WHERE %s = any(pg_blocking_pids(a.pid))", pid
        )
        return found

    # -- observations ----------------------------------------------------------------------

    def ask(self, sql: str, *parameters: Any) -> Any:
        """Return the first column of the first row, outside of every transaction."""
        return self._watcher.exec_driver_sql(self.tables.qualify(sql), parameters).scalar()

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        found = self._watcher.exec_driver_sql(self.tables.qualify(sql), parameters)
        return [tuple(row) for row in found]

    def states(self, group: str = GROUP) -> list[tuple[str, int]]:
        """Return (message id, state) of a group's deliveries, oldest first."""
        found = self.rows(
            "SELECT m.id, d.state FROM {q}deliveries d JOIN {q}groups g ON g.id = d.group_id "
            "LEFT JOIN {q}messages m ON m.seq = d.seq WHERE g.name = %s ORDER BY d.seq", group
        )
        return [(id, state) for id, state in found]

    def stuck_lanes(self) -> int:
        """Count lanes with somebody waiting for nobody."""
        found: int = self.ask(
            "SELECT count(*) FROM {q}deliveries w WHERE state = 2 AND NOT EXISTS ("
            "SELECT FROM {q}deliveries h WHERE h.group_id = w.group_id AND h.key = w.key "
            "AND h.state IN (0, 1, 3, 5, 6))"
        )
        return found


def pid_of(connection: sa.Connection) -> int:
    pid: int = connection.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
    return pid


def eventually(condition: Callable[[], object], deadline: float = DEADLINE) -> None:
    """Wait for something that another thread or the server does; it is asked again and again."""
    end = time.monotonic() + deadline
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        pause.wait(0.002)


def ids(claims: Sequence[Claimed]) -> list[str]:
    return [claim.message.id for claim in claims]
