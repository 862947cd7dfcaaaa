"""G. One SQLite file for the queue, the application, and whoever else has it open."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from queue_lib import Delivery, Message, Stats, open_queue
from queue_lib.stores.sql.sqlite import writer
from queue_lib.testing.conformance.case import together
from tests.engine.harness import DEADLINE, FAST, GROUP, TOPIC, Inbox, eventually, messages
from tests.sqlite.support import write_lock

MEBIBYTE = 1 << 20


@pytest.fixture
def url(sqlite_migrated_url: str) -> sa.URL:
    return sa.make_url(sqlite_migrated_url)


@pytest.fixture
def host(url: sa.URL) -> Iterator[sa.Engine]:
    """The application's engine, with the driver's own way of making transactions."""
    engine = sa.create_engine(url, connect_args={"timeout": DEADLINE})
    with engine.begin() as connection:
        connection.exec_driver_sql("create table theirs (number integer)")
    yield engine
    engine.dispose()


def wal(url: sa.URL) -> Path:
    return Path(f"{url.database}-wal")


@pytest.mark.slow
def test_nobody_is_told_that_the_file_is_locked(url: sa.URL, host: sa.Engine) -> None:
    """P62. Publishers, handlers that write, a janitor, and a stranger who keeps the lock."""
    publishers, each = 4, 40
    tiny = 1e-9  # hours: what is done is purged at once
    half_way, never = threading.Event(), threading.Event()

    def handle(delivery: Delivery) -> None:
        with host.begin() as connection:  # reads first, then writes: the driver begins late
            connection.exec_driver_sql("select count(*) from theirs").scalar()
            connection.exec_driver_sql("insert into theirs values (?)", (int(delivery.payload),))

    def publish(number: int) -> None:
        for index in range(each):
            queue.publish(*messages(1, start=number * each + index, key=f"key {number}"))
            if index == each // 2 and number == 0:
                half_way.set()

    def hold() -> None:
        assert half_way.wait(DEADLINE)
        for _ in range(3):
            with write_lock(url):
                assert not never.wait(0.3)

    inbox = Inbox(then=handle)
    with open_queue(
        url, janitor_interval=0.01, retention_hours=tiny, acked_retention_hours=tiny
    ) as queue:
        queue.subscribe(TOPIC, GROUP, inbox, **FAST, concurrency=4)
        stranger = threading.Thread(target=hold, name="stranger")
        stranger.start()
        together(publishers, publish)  # raises what any of them was told
        inbox.wait(publishers * each)
        eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
        stranger.join(DEADLINE)
        assert queue.health().ok
        assert queue.health().errors == ()
    assert inbox.attempts == [1] * publishers * each
    with host.connect() as connection:
        written = connection.exec_driver_sql("select count(*) from theirs").scalar_one()
    assert written == publishers * each


@pytest.mark.slow
def test_the_wal_stays_small_under_load(url: sa.URL) -> None:
    """P64. No reader of ours stays open, so each checkpoint lets it begin anew."""
    inbox, largest, written = Inbox(), 0, 0
    with open_queue(url) as queue, open_queue(url) as other:
        queue.subscribe(TOPIC, GROUP, inbox, **FAST)
        for _ in range(60):
            queue.publish(*(Message(TOPIC, bytes(50_000)) for _ in range(10)))
            written += 500_000
            other.stats(TOPIC, GROUP)
            largest = max(largest, wal(url).stat().st_size)
        inbox.wait(600)
    assert written > 25 * MEBIBYTE
    assert largest < 10 * MEBIBYTE


def test_the_wal_is_cut_back_when_a_forgotten_reader_has_left(
    url: sa.URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P64. As long as it reads nothing can be done; after that the file is small again."""
    monkeypatch.setattr(writer, "_JOURNAL_LIMIT", MEBIBYTE)
    with open_queue(url) as queue:
        queue.publish(Message(TOPIC))
        reader = sqlite3.connect(str(url.database), isolation_level=None)
        reader.execute("begin")
        reader.execute("select count(*) from queue_messages").fetchone()
        for _ in range(20):
            queue.publish(*(Message(TOPIC, bytes(50_000)) for _ in range(10)))
        assert wal(url).stat().st_size > 8 * MEBIBYTE
        reader.close()
        for _ in range(5):
            queue.publish(Message(TOPIC, bytes(50_000)))
        assert wal(url).stat().st_size <= 2 * MEBIBYTE
