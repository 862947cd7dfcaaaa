"""C. Speed with large tables, bloat, vacuum: what must not be held, written or counted."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from queue_lib import Stats, Store, open_queue
from queue_lib.engine.queue import StoreQueue
from queue_lib.stores.schema import build_tables
from queue_lib.stores.sql.open import open_sql_store
from queue_lib.testing.faults import StoreWrapper
from tests.engine.conftest import OpenQueue
from tests.engine.harness import (
    DEADLINE,
    FAST,
    GROUP,
    TOPIC,
    Gate,
    Inbox,
    eventually,
    messages,
)
from tests.pain.conftest import OwnQueue

_OURS = "FROM pg_stat_activity WHERE application_name = 'ours'"


@pytest.fixture
def watcher(postgres_migrated_url: str) -> Iterator[sa.Connection]:
    """A connection that looks at what the queue's do, outside of every transaction."""
    engine = sa.create_engine(postgres_migrated_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def test_no_connection_of_ours_is_ever_idle_in_a_transaction(
    postgres_migrated_url: str, watcher: sa.Connection
) -> None:
    """P36. It would keep vacuum from its work: not while idle, in handlers, nor under load."""
    held = f"SELECT count(*) {_OURS} AND state LIKE 'idle in transaction%%'"
    pinning = f"SELECT count(*) {_OURS} AND state = 'idle' AND backend_xmin IS NOT NULL"
    url = sa.make_url(postgres_migrated_url).update_query_dict({"application_name": "ours"})
    looks = 0

    def look() -> None:
        nonlocal looks
        assert watcher.exec_driver_sql(held).scalar_one() == 0
        assert watcher.exec_driver_sql(pinning).scalar_one() == 0
        looks += 1

    with open_queue(url) as queue, Gate() as gate:
        queue.subscribe(TOPIC, GROUP, gate, **FAST, lease_duration=0.5, concurrency=2)
        eventually(lambda: queue.health().subscriptions[0].since_claim is not None)
        look()
        queue.publish(*messages(400), *messages(400, start=400, key="k"))
        gate.wait(2)
        assert watcher.exec_driver_sql(f"SELECT count(*) {_OURS}").scalar_one() >= 2
        eventually(lambda: queue.health().subscriptions[0].since_heartbeat is not None)
        look()
        gate.open()
        while queue.stats(TOPIC, GROUP) != Stats():
            look()
    assert looks > 10


def test_the_tables_come_with_settings_for_their_vacuum(
    postgres_migrated_url: str, watcher: sa.Connection
) -> None:
    """P37. By count, not by share; what else keeps vacuum away is in docs/operations.md."""
    query = "SELECT relname, reloptions::text AS options FROM pg_class WHERE relkind = 'r'"
    options = {row.relname: row.options or "" for row in watcher.exec_driver_sql(query)}
    for table in ("queue_messages", "queue_deliveries"):
        assert "autovacuum_vacuum_threshold=10000" in options[table]
        assert "autovacuum_vacuum_scale_factor=0" in options[table]


def test_claims_leave_the_small_tables_alone(
    postgres_migrated_url: str, watcher: sa.Connection
) -> None:
    """P38. No row of a group or topic is written by a claim, an outcome or a heartbeat."""
    versions = (
        "SELECT 'topic', ctid::text, xmin::text FROM queue_topics UNION ALL "
        "SELECT 'group', ctid::text, xmin::text FROM queue_groups"
    )
    with open_queue(postgres_migrated_url) as queue, Gate() as gate:
        queue.subscribe(TOPIC, GROUP, gate, **FAST, lease_duration=0.3, max_in_flight=3)
        before = watcher.exec_driver_sql(versions).all()
        queue.publish(*messages(50), *messages(50, start=50, key="k"))
        gate.wait()
        eventually(lambda: queue.health().subscriptions[0].since_heartbeat is not None)
        gate.open()
        eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    assert len(before) == 2
    assert watcher.exec_driver_sql(versions).all() == before


class Polls(StoreWrapper):
    """A store that counts the calls that have ended, whatever an idle subscription calls."""

    def __init__(self, store: Store) -> None:
        self._ended = threading.Semaphore(0)
        super().__init__(store)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().call(method, *args, **kwargs)
        finally:
            self._ended.release()

    def wait(self, count: int) -> None:
        """Wait until that many more have ended."""
        for _ in range(count):
            assert self._ended.acquire(timeout=DEADLINE)


def test_an_idle_group_on_postgresql_writes_nothing(
    postgres_migrated_url: str, watcher: sa.Connection, own_queue: OwnQueue
) -> None:
    """P38. Whoever writes takes a transaction id: none is taken in twenty polls."""
    polls = Polls(open_sql_store(sa.make_url(postgres_migrated_url)))
    own_queue(polls).subscribe(TOPIC, GROUP, Inbox(), poll_interval=0.01)
    polls.wait(2)  # the registration, and the first look
    taken = []
    for _ in range(3):  # the server itself may take one now and then
        before = _next_transaction(watcher)
        polls.wait(20)
        taken.append(_next_transaction(watcher) - before)
    assert min(taken) == 0


def _next_transaction(watcher: sa.Connection) -> int:
    query = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"
    return int(watcher.exec_driver_sql(query).scalar_one())


def test_an_idle_group_on_sqlite_writes_nothing(
    sqlite_migrated_url: str, own_queue: OwnQueue
) -> None:
    """P38. SQLite counts commits for us."""
    url = sa.make_url(sqlite_migrated_url)
    polls = Polls(open_sql_store(url))
    own_queue(polls).subscribe(TOPIC, GROUP, Inbox(), poll_interval=0.01)
    polls.wait(2)  # the registration, and the first look
    other = sqlite3.connect(str(url.database))
    version = "PRAGMA data_version"
    before = other.execute(version).fetchone()
    polls.wait(20)
    assert other.execute(version).fetchone() == before
    other.close()


@pytest.mark.parametrize("name", ["sqlite", "postgres"])
def test_what_is_acknowledged_has_no_row_that_could_be_counted(
    request: pytest.FixtureRequest, name: str
) -> None:
    """P39. Counting costs what is pending, and nothing of what was ever done."""
    url = request.getfixturevalue(f"{name}_migrated_url")
    engine = sa.create_engine(url)
    inbox = Inbox()
    with open_queue(engine) as queue:
        queue.subscribe(TOPIC, GROUP, inbox, **FAST)
        queue.publish(*messages(300), *messages(300, start=300, key="k"))
        inbox.wait(600)
        eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    tables = build_tables()
    with engine.connect() as connection:
        rows = {
            table.name: connection.scalar(sa.select(sa.func.count()).select_from(table))
            for table in (tables.messages, tables.deliveries)
        }
    engine.dispose()
    assert rows == {"queue_messages": 600, "queue_deliveries": 0}


def test_a_process_that_only_publishes_sees_what_others_have_done(
    queue: StoreQueue, open_queue: OpenQueue
) -> None:
    """P40. A figure is read when it is asked for, and zero is a figure."""
    elsewhere = open_queue()
    elsewhere.subscribe(TOPIC, GROUP, Inbox()).close()
    queue.publish(*messages(20))
    assert queue.stats(TOPIC, GROUP) == Stats(pending=20)
    elsewhere.subscribe(TOPIC, GROUP, Inbox(), **FAST)
    eventually(lambda: elsewhere.stats(TOPIC, GROUP) == Stats())
    assert queue.stats(TOPIC, GROUP) == Stats()
    assert queue.group_stats(TOPIC, GROUP).oldest_ready_age is None
