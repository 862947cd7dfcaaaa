"""Commits of others, in this process or in another, wake; our own do not."""

from __future__ import annotations

import fcntl
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from queue_lib.errors import QueueClosedError, UnsupportedError
from queue_lib.stores.sql.dialect import Connection
from queue_lib.stores.sql.sqlite import SqliteDatabase
from queue_lib.stores.sql.sqlite import database as sqlite_database
from queue_lib.stores.sql.sqlite.watch import FileWatch
from tests.sqlite.support import DEADLINE, TABLES, Queue, message, write_lock


@contextmanager
def listening(database: SqliteDatabase) -> Iterator[threading.Semaphore]:
    """Listen; the semaphore is released once for each wake, the first of which is not counted."""
    wakes, stop = threading.Semaphore(0), threading.Event()

    def wake(topic: str) -> None:
        assert topic == ""
        wakes.release()

    listener = threading.Thread(target=database.listen, args=(wake, stop), name="queue-listener")
    listener.start()
    assert wakes.acquire(timeout=DEADLINE)  # nobody knows what was before
    yield wakes
    stop.set()
    listener.join(DEADLINE)
    assert not listener.is_alive()


def each_of_three_commits_wakes(url: sa.URL, wakes: threading.Semaphore) -> None:
    for number in range(3):
        with write_lock(url) as other:
            other.execute(f"insert into queue_topics (name) values ('t{number}')")
            other.execute("commit")
        assert wakes.acquire(timeout=DEADLINE)


def test_a_commit_of_another_connection_wakes(queue: Queue, url: sa.URL):
    with listening(queue.database) as wakes:
        each_of_three_commits_wakes(url, wakes)


def test_a_commit_of_another_queue_of_this_process_wakes(queue: Queue, url: sa.URL):
    other = SqliteDatabase(url, TABLES)
    publisher = Queue(other)
    with listening(queue.database) as wakes:
        publisher.append(message("a"))
        assert wakes.acquire(timeout=DEADLINE)
    other.close()


def test_a_commit_that_our_own_transaction_saw_first_still_wakes(queue: Queue, url: sa.URL):
    assert queue.database._writer.others_committed()  # the first look
    with write_lock(url) as other:
        other.execute("insert into queue_topics (name) values ('t')")
        other.execute("commit")
    queue.append(message("a"))
    assert queue.database._writer.others_committed()
    queue.append(message("b"))
    assert not queue.database._writer.others_committed()


def test_a_rollback_does_not_wake(queue: Queue, url: sa.URL):
    assert queue.database._writer.others_committed()
    with write_lock(url) as other:
        other.execute("insert into queue_topics (name) values ('t')")
    assert not queue.database._writer.others_committed()


def test_looking_never_waits_for_a_writer(queue: Queue):
    def work(_connection: Connection) -> bool:
        found: list[bool] = []
        looker = threading.Thread(
            target=lambda: found.append(queue.database._writer.others_committed())
        )
        looker.start()
        looker.join(DEADLINE)
        return found[0]

    assert not queue.database.write(work)
    assert queue.database.write(work)  # the first writer was asked, and has looked at its end
    assert not queue.database.write(work)


def test_without_wal_a_commit_under_way_is_seen_later(tmp_path):
    host = sa.create_engine(sa.URL.create("sqlite", database=str(tmp_path / "plain.db")))
    TABLES.metadata.create_all(host)
    database = SqliteDatabase(host, TABLES)
    assert database._writer.others_committed()
    with host.connect() as other:
        other.exec_driver_sql("begin exclusive")
        other.exec_driver_sql("insert into queue_topics (name) values ('t')")
        assert not database._writer.others_committed()
        other.commit()
    assert database._writer.others_committed()
    database.close()
    host.dispose()


def test_a_commit_of_another_process_is_heard_without_a_look(
    queue: Queue, url: sa.URL, monkeypatch: pytest.MonkeyPatch
):
    """The watch tells of the write to the WAL; the commit counts once that is on the disk."""
    with FileWatch(Path(f"{url.database}-wal")) as watch:
        if not watch.is_real:
            pytest.skip("this system tells nobody that a file was written to")
    monkeypatch.setattr(sqlite_database, "_LOOK_SECONDS", 2 * DEADLINE)
    with listening(queue.database) as wakes:
        each_of_three_commits_wakes(url, wakes)
        monkeypatch.undo()
        queue.append(message("a"))  # ends the long wait


def test_a_watch_works_in_a_process_with_many_descriptors(tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        with FileWatch(file) as watch:
            if watch._events is None:
                pytest.skip("this system tells nobody that a file was written to")
            high = fcntl.fcntl(watch._events, fcntl.F_DUPFD_CLOEXEC, 1100)
            os.close(watch._events)
            watch._events = high
            assert watch.wait(0) is False
            file.write_bytes(b"x")
            assert watch.wait(DEADLINE) is True
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_watch_that_cannot_be_had_is_a_pause(tmp_path: Path):
    with FileWatch(tmp_path / "missing") as watch:
        assert not watch.is_real
        assert watch.wait(0.001) is False


def test_a_closed_database_ends_the_listening(queue: Queue):
    queue.database.close()
    with pytest.raises(QueueClosedError):
        queue.database.listen(lambda topic: None, threading.Event())


def test_listening_can_be_off(url: sa.URL):
    database = SqliteDatabase(url, TABLES, wake=False)
    with pytest.raises(UnsupportedError):
        database.listen(lambda topic: None, threading.Event())
    database.close()
