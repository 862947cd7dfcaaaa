"""Steps and observations for the tests of the PostgreSQL store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar

import sqlalchemy as sa

from queue_lib.message import Message
from queue_lib.options import StartFrom
from queue_lib.stores.base import ClaimBatch, Claimed, ClaimRequest, PurgePolicy
from queue_lib.stores.schema import Tables
from queue_lib.stores.sql.dialect import Database, Held
from queue_lib.stores.sql.postgres import PostgresDatabase, PostgresStatements
from queue_lib.stores.sql.store import SqlStore, StoreClock

P = ParamSpec("P")
T = TypeVar("T")

TOPIC, GROUP = "orders", "billing"
DEADLINE = 20.0
LEASE = timedelta(seconds=30)


def message(id: str, key: str = "", *, topic: str = TOPIC, **fields: Any) -> Message:
    fields.setdefault("payload", b"x")
    return Message(topic, key=key, id=id, published_at=datetime.now(UTC), **fields)


class Lab:
    """A host's engine, and what its tests do beside it."""

    def __init__(self, host: sa.Engine, tables: Tables) -> None:
        self.host = host
        self.tables = tables
        self.sql = PostgresStatements(tables)
        self._stores: list[SqlStore] = []
        self._watcher = host.execution_options(isolation_level="AUTOCOMMIT").connect()
        self._threads = ThreadPoolExecutor(16, thread_name_prefix="lab")

    def close(self) -> None:
        self._threads.shutdown()
        self._watcher.close()
        for store in self._stores:
            store.close()

    # -- stores ----------------------------------------------------------------------------

    def database(
        self, target: sa.Engine | sa.URL | None = None, **options: Any
    ) -> PostgresDatabase:
        """Make a database; without `target` on the host's URL."""
        return PostgresDatabase(target or self.host.url, self.tables, **options)

    def store(
        self,
        target: Database | sa.Engine | sa.URL | None = None,
        *,
        clock: StoreClock | None = None,
        **options: Any,
    ) -> SqlStore:
        """Open a store that the lab closes."""
        if target is None or isinstance(target, sa.Engine | sa.URL):
            target = self.database(target, **options)
        store = SqlStore(target, PostgresStatements(self.tables), clock=clock)
        self._stores.append(store)
        return store

    def consuming(self, *groups: str, target: Database | None = None, **options: Any) -> SqlStore:
        """Open a store, with groups registered on `TOPIC`."""
        store = self.store(target, **options)
        for group in groups or (GROUP,):
            self.register(store, group)
        return store

    @staticmethod
    def register(store: SqlStore, group: str = GROUP, *, earliest: bool = False) -> None:
        store.ensure_group(TOPIC, group, StartFrom.EARLIEST if earliest else StartFrom.LATEST)

    @staticmethod
    def claim(
        store: SqlStore, max: int = 10, *, group: str = GROUP, cap: int = 0,
        lease: timedelta = LEASE,
    ) -> ClaimBatch:  # fmt: skip
        return store.claim(ClaimRequest(TOPIC, group, "runner", max, lease, cap))

    def do_everything(self, store: SqlStore) -> None:
        """Call each operation at least once; leaves nothing that is due."""
        self.register(store)
        store.append([message("a", "k"), message("b", "k"), message("c"), message("d")])
        claims = self.claim(store, cap=10)
        assert ids(claims) == ["a", "c", "d"]
        assert len(store.extend(claims, LEASE)) == 3
        store.release(claims[:1])
        assert store.retry(claims[1], LEASE, "x")
        assert store.kill(claims[2], "x")
        while claims := self.claim(store):
            assert len(store.ack(claims)) == len(claims)
        store.purge(PurgePolicy(LEASE, LEASE), 10)
        store.stats(TOPIC, GROUP)
        store.ping()

    # -- interleavings ---------------------------------------------------------------------

    @contextmanager
    def transaction(self, isolation: str = "READ COMMITTED") -> Iterator[sa.Connection]:
        """A transaction of the host; rolled back unless the test commits it."""
        with self.host.execution_options(isolation_level=isolation).connect() as connection:
            yield connection

    def start(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run something in a thread."""
        return self._threads.submit(work, *args, **kwargs)

    def start_behind(self, blocker: sa.Connection, work: Callable[[], T]) -> Future[T]:
        """Run something in a thread; returns once one more backend waits for `blocker`."""
        pid = pid_of(blocker)
        before = self._waiting_for(pid)
        future = self.start(work)
        eventually(lambda: future.done() or self._waiting_for(pid) > before)
        if future.done():
            raise AssertionError(f"it did not wait: {future.exception() or future.result()}")
        return future

    def _waiting_for(self, pid: int) -> int:
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

    def do(self, sql: str) -> None:
        """Run something that returns nothing."""
        self._watcher.exec_driver_sql(self.tables.qualify(sql))

    def states(self, group: str = GROUP) -> dict[str, int]:
        """Return the state of each of a group's deliveries by message id, oldest first."""
        found = self.rows(
            "SELECT coalesce(m.id, '?'), d.state FROM {q}deliveries d "
            "JOIN {q}groups g ON g.id = d.group_id LEFT JOIN {q}messages m ON m.seq = d.seq "
            "WHERE g.name = %s ORDER BY d.seq", group
        )  # fmt: skip
        return dict(found)

    def group_id(self, group: str = GROUP) -> int:
        found: int = self.ask("SELECT id FROM {q}groups WHERE name = %s", group)
        return found

    def stripe_mate(self, key: str) -> str:
        """Find another key that shares the lane lock of `key`."""
        found: str = self.ask(
            "SELECT k FROM generate_series(1, 100000) n, cast('mate' || n AS text) k "
            "WHERE {q}stripe_v1(k) = {q}stripe_v1(%s) LIMIT 1", key
        )  # fmt: skip
        return found


def held(claims: Sequence[Claimed]) -> list[Held]:
    """Return what the statements take for claims."""
    return [Held(claim.ref[1], claim.claim_token, claim.ref[2]) for claim in claims]


def ids(claims: Sequence[Claimed]) -> list[str]:
    return [claim.message.id for claim in claims]


def pid_of(connection: sa.Connection) -> int:
    driver: Any = connection.connection.driver_connection
    pid: int = driver.info.backend_pid
    return pid


def eventually(condition: Callable[[], object], deadline: float = DEADLINE) -> None:
    """Wait for something that another thread or the server does: it is asked again and again."""
    end = time.monotonic() + deadline
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        pause.wait(0.002)
