"""Durable writes that wait at the same time share a commit, and nothing else."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from queue_lib.errors import StoreUnavailableError
from queue_lib.stores.sql.dialect import Connection
from queue_lib.stores.sql.sqlite import SqliteDatabase, leader
from tests.sqlite.support import DEADLINE, NOW, TABLES, Queue, message, until, write_lock


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(9) as pool:
        yield pool


@contextmanager
def held(database: SqliteDatabase, pool: ThreadPoolExecutor) -> Iterator[list[str]]:
    """Hold a leader in its transaction until the end of the block; collect the transactions."""
    begun, go = threading.Event(), threading.Event()
    begins: list[str] = []
    database.write_durably(lambda connection: None)  # so that it has a connection
    database._writer._driver.set_trace_callback(
        lambda text: begins.append(text) if text == "BEGIN IMMEDIATE" else None
    )

    def work(_connection: Connection) -> None:
        begun.set()
        assert go.wait(DEADLINE)

    first = pool.submit(database.write_durably, work)
    assert begun.wait(DEADLINE)
    try:
        yield begins
    finally:
        go.set()
        first.result(DEADLINE)


def waiting(database: SqliteDatabase, count: int) -> None:
    until(lambda: len(database._leader._waiting) == count)


def test_those_who_come_meanwhile_share_the_next_commit(queue: Queue, pool: ThreadPoolExecutor):
    with held(queue.database, pool) as begins:
        futures = [pool.submit(queue.append, message(f"m{n}", key="k")) for n in range(8)]
        waiting(queue.database, 8)
    for future in futures:
        future.result(DEADLINE)
    assert len(begins) == 2
    assert queue.rows("select state, count(*) from {q}deliveries group by 1") == [(0, 1), (2, 7)]


def test_each_gets_its_own_result_and_its_own_error(queue: Queue, pool: ThreadPoolExecutor):
    def work(connection: Connection, number: int) -> int:
        queue.sql.append(connection, [message(f"m{number}")], NOW)
        if number % 2:
            raise LookupError(number)
        return number

    with held(queue.database, pool):
        futures = [pool.submit(queue.database.write_durably, work, n) for n in range(6)]
        waiting(queue.database, 6)
    outcomes = [future.exception(DEADLINE) or future.result() for future in futures]
    assert outcomes[::2] == [0, 2, 4]
    assert [str(error) for error in outcomes[1::2]] == ["1", "3", "5"]
    assert queue.rows("select id from {q}messages order by id") == [("m0",), ("m2",), ("m4",)]


def test_a_transaction_that_is_lost_is_lost_for_all(queue: Queue, pool: ThreadPoolExecutor):
    def end_it(connection: Connection) -> None:
        connection.execute("rollback")  # as SQLite does when the disk is full
        raise LookupError

    with held(queue.database, pool):
        futures = [pool.submit(queue.append, message("a"))]
        waiting(queue.database, 1)
        futures.append(pool.submit(queue.database.write_durably, end_it))
        waiting(queue.database, 2)
    assert [type(future.exception(DEADLINE)) for future in futures] == [LookupError] * 2
    assert queue.rows("select id from {q}messages") == []
    queue.append(message("a"))
    assert queue.claimed() == ["a"]


def test_a_lock_that_stays_taken_is_told_to_all(
    url: sa.URL, queue: Queue, pool: ThreadPoolExecutor
):
    impatient = SqliteDatabase(url.update_query_dict({"timeout": "0.2"}), TABLES)
    with write_lock(url):
        futures = [
            pool.submit(impatient.write_durably, queue.sql.append, [message(f"m{n}")], NOW)
            for n in range(4)
        ]
        for future in futures:
            with pytest.raises(StoreUnavailableError, match="own, publish in it"):
                future.result(DEADLINE)
    impatient.write_durably(queue.sql.append, [message("a")], NOW)
    impatient.close()
    assert queue.claimed() == ["a"]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises, whatever the test runner or an earlier test made of it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals for threads here")
def test_who_is_interrupted_while_waiting_leaves_the_others_to_go_on(
    queue: Queue, pool: ThreadPoolExecutor, interruptible: None
):
    def interrupt() -> None:
        waiting(queue.database, 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with held(queue.database, pool):
        interrupter = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            queue.append(message("a"))
        interrupter.result(DEADLINE)
        follower = pool.submit(queue.append, message("b"))
        waiting(queue.database, 1)
    follower.result(DEADLINE)
    assert queue.claimed() == ["b"]


def test_who_is_interrupted_when_it_is_to_lead_passes_that_on(
    queue: Queue, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
):
    class Interrupted(leader._Request):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.turn = self  # type: ignore[assignment]

        def acquire(self) -> None:
            until(lambda: self.leads)
            raise KeyboardInterrupt

        def release(self) -> None:
            pass

    with held(queue.database, pool):
        with monkeypatch.context() as patch:
            patch.setattr(leader, "_Request", Interrupted)
            interrupted = pool.submit(queue.append, message("a"))
            waiting(queue.database, 1)
        follower = pool.submit(queue.append, message("b"))
        waiting(queue.database, 2)
    assert isinstance(interrupted.exception(DEADLINE), KeyboardInterrupt)
    follower.result(DEADLINE)
    assert queue.claimed() == ["b"]


def test_who_is_interrupted_in_the_middle_says_so_to_the_others(
    queue: Queue, pool: ThreadPoolExecutor
):
    def interrupt(_connection: Connection) -> None:
        raise KeyboardInterrupt

    with held(queue.database, pool):
        leading = pool.submit(queue.database.write_durably, interrupt)
        waiting(queue.database, 1)
        follower = pool.submit(queue.append, message("a"))
        waiting(queue.database, 2)
    assert isinstance(leading.exception(DEADLINE), KeyboardInterrupt)
    assert "interrupted" in str(follower.exception(DEADLINE))
    queue.append(message("a"))
    assert queue.claimed() == ["a"]
