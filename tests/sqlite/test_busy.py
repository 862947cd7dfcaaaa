"""Locks that others hold: waited for, up to the driver's timeout."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from queue_lib import Message, open_queue
from queue_lib.errors import QueueClosedError, StoreUnavailableError
from queue_lib.options import StartFrom
from queue_lib.stores.sql.dialect import Connection
from queue_lib.stores.sql.open import open_sql_store
from queue_lib.stores.sql.sqlite import SqliteDatabase
from tests.sqlite.support import DEADLINE, NOW, TABLES, Queue, message, write_lock


def test_a_write_waits_for_another_process(queue: Queue, url: sa.URL):
    begun = threading.Event()
    queue.database._writer._driver.set_trace_callback(lambda text: begun.set())
    with ThreadPoolExecutor(1) as pool:
        with write_lock(url):
            published = pool.submit(queue.append, message("a"))
            assert begun.wait(DEADLINE)
            assert not published.done()
        published.result(DEADLINE)
    assert queue.claimed() == ["a"]


def test_a_write_gives_up_at_the_timeout_of_the_driver(url: sa.URL):
    store = open_sql_store(url.update_query_dict({"timeout": "0.1"}))
    begun = time.monotonic()
    with write_lock(url), pytest.raises(StoreUnavailableError, match="database is locked"):
        store.ensure_group("orders", "billing", StartFrom.LATEST)
    assert 0.1 <= time.monotonic() - begun < 3
    store.ensure_group("orders", "billing", StartFrom.LATEST)
    store.close()


def test_a_host_engine_brings_its_own_timeout(url: sa.URL):
    host = sa.create_engine(url, connect_args={"timeout": 0.1})
    database = SqliteDatabase(host, TABLES)
    begun = time.monotonic()
    with write_lock(url), pytest.raises(StoreUnavailableError, match="own, publish in it"):
        database.write(lambda connection: None)
    assert 0.1 <= time.monotonic() - begun < 3  # the default is five seconds
    database.close()
    host.dispose()


def test_a_write_gives_up_waiting_for_a_thread_of_its_own_process(url: sa.URL):
    database = SqliteDatabase(url.update_query_dict({"timeout": "0.1"}), TABLES)
    begun, go = threading.Event(), threading.Event()

    def work(_connection: Connection) -> None:
        begun.set()
        assert go.wait(DEADLINE)

    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(database.write, work)
        assert begun.wait(DEADLINE)
        with pytest.raises(StoreUnavailableError, match="other threads of this process"):
            database.write(lambda connection: None)
        go.set()
        under_way.result(DEADLINE)
    database.close()


def test_two_queues_on_one_file_take_turns_in_the_process(url: sa.URL, tmp_path: Path):
    (tmp_path / "link.db").symlink_to(url.database or "")
    first = SqliteDatabase(url, TABLES)
    second = SqliteDatabase(url.set(database=str(tmp_path / "link.db")), TABLES)
    inside, both = 0, 0

    def work(_connection: Connection) -> None:
        nonlocal inside, both
        inside += 1
        both = max(both, inside)
        time.sleep(0.0001)
        inside -= 1

    with ThreadPoolExecutor(8) as pool:
        for number in range(64):
            pool.submit((first, second)[number % 2].write, work)
    assert both == 1
    assert first._writer._gate is second._writer._gate
    first.close()
    second.close()


def test_readers_do_not_wait_for_a_writer(queue: Queue, url: sa.URL):
    with write_lock(url) as other:
        other.execute("insert into queue_topics (name) values ('uncommitted')")
        assert queue.rows("select count(*) from {q}topics") == [(1,)]
        assert queue.database.read(queue.sql.peek, [queue.group], NOW) == [(False, None)]


def test_without_wal_a_commit_is_repeated_until_the_reader_has_left(tmp_path: Path):
    host = sa.create_engine(sa.URL.create("sqlite", database=str(tmp_path / "plain.db")))
    TABLES.metadata.create_all(host)
    database = SqliteDatabase(host, TABLES)
    runs = 0
    twice = threading.Event()

    def work(connection: Connection) -> None:
        nonlocal runs
        runs += 1
        if runs == 2:
            twice.set()
        connection.execute("insert into queue_topics (name) values ('orders')")

    with ThreadPoolExecutor(1) as pool, host.connect() as reader:
        cursor = reader.exec_driver_sql(
            "with recursive n(i) as (select 1 union all select i + 1 from n) "
            "select i, (select count(*) from queue_topics) from n"
        )
        cursor.fetchone()
        written = pool.submit(database.write, work)
        assert twice.wait(DEADLINE)
        cursor.close()
        written.result(DEADLINE)
    with host.connect() as reader:
        names = reader.exec_driver_sql("select name from queue_topics").scalars().all()
    assert names == ["orders"]
    database.close()
    host.dispose()


@pytest.mark.parametrize("durable", [True, False])
def test_an_interrupt_frees_the_write_lock_at_once(queue: Queue, url: sa.URL, durable: bool):
    """Its traceback keeps a cursor that was not read to its end, and with it the connection."""

    def interrupted(connection: Connection) -> None:
        queue.sql.append(connection, [message("lost")], NOW)
        cursor = connection.execute("select 1 union all select 2")
        cursor.fetchone()
        raise KeyboardInterrupt

    transact = queue.database.write_durably if durable else queue.database.write
    with pytest.raises(KeyboardInterrupt) as raised:
        transact(interrupted)
    with write_lock(url):
        assert raised.tb is not None
    assert queue.claimed() == []


def test_a_host_that_forgot_its_own_transaction_is_told_once(
    url: sa.URL, monkeypatch: pytest.MonkeyPatch
):
    """The driver's timeout is how long a publish waits: it is not waited for again and again."""
    with open_queue(url.update_query_dict({"timeout": "0.5"})) as publisher, write_lock(url):
        monkeypatch.setattr("queue_lib.engine.queue._PATIENCE", 0.4)
        begun = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="with connection="):
            publisher.publish(Message("orders"))
        assert time.monotonic() - begun < 0.9  # and not four times as long


def test_a_failed_transaction_leaves_nothing_and_the_next_one_works(queue: Queue):
    def fail(connection: Connection) -> None:
        queue.sql.append(connection, [message("lost")], NOW)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        queue.database.write(fail)
    queue.append(message("kept"))
    assert queue.claimed() == ["kept"]


def test_a_closed_database_opens_nothing_again(queue: Queue):
    queue.database.close()
    queue.database.close()
    for transact in (queue.database.write, queue.database.write_durably, queue.database.read):
        with pytest.raises(QueueClosedError):
            transact(lambda connection: None)
