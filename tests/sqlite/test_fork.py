"""A forked child works on connections of its own, and the parent goes on."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from queue_lib.errors import StoreUnavailableError
from queue_lib.stores.sql.dialect import Connection
from queue_lib.stores.sql.sqlite import SqliteDatabase
from tests.sqlite.support import DEADLINE, TABLES, Queue, message, open_files, write_lock

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]


def forked(work: Callable[[], Any], *databases: SqliteDatabase) -> Callable[[], Any]:
    """Do `work` in a forked child; what is returned waits for its result."""
    reading, writing = os.pipe()
    for database in databases:
        database.before_fork()
    pid = os.fork()
    for database in reversed(databases):
        database.after_fork(child=not pid)
    if not pid:
        try:
            os.write(writing, pickle.dumps(work()))
        except BaseException as error:  # noqa: BLE001 - the parent shows it
            os.write(writing, pickle.dumps(repr(error)))
        os._exit(0)
    os.close(writing)

    def result() -> Any:
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(pid, 0)
        return pickle.loads(answer)  # noqa: S301 - our own child

    return result


def test_the_child_publishes_and_the_parent_consumes(queue: Queue, url: sa.URL):
    queue.append(message("before"))

    def work() -> int:
        inherited = open_files(url)
        queue.append(message("from the child"))
        return inherited

    assert forked(work, queue.database)() == 0
    queue.append(message("after"))
    assert queue.claimed() == ["before", "from the child", "after"]


def test_the_child_sees_the_locks_of_the_parent(url: sa.URL):
    """With a connection inherited over the fork, SQLite would take them for its own."""
    impatient = SqliteDatabase(url.update_query_dict({"timeout": "0.05"}), TABLES)
    Queue(impatient)
    waiting, going = os.pipe()

    def work() -> str:
        os.read(waiting, 1)
        with pytest.raises(StoreUnavailableError) as raised:
            impatient.write(lambda connection: None)
        return str(raised.value)

    result = forked(work, impatient)
    with write_lock(url):
        os.write(going, b".")
        assert result().startswith("database is locked")
    os.close(waiting)
    os.close(going)
    impatient.close()


def test_two_queues_on_one_file_fork_together(queue: Queue, url: sa.URL):
    second = SqliteDatabase(url, TABLES)
    other = Queue(second)
    other.append(message("a"))

    def work() -> list[str | None]:
        queue.append(message("b"))
        return other.claimed(1)

    assert forked(work, queue.database, second)() == ["a"]
    assert other.claimed() == ["b"]
    second.close()


@pytest.mark.parametrize("kind", ["write", "write_durably", "read"])
def test_a_fork_waits_for_what_is_under_way_and_holds_up_the_rest(queue: Queue, kind: str):
    transact = getattr(queue.database, kind)
    begun, go, forking, forked = (threading.Event() for _ in range(4))

    def work(_connection: Connection) -> None:
        begun.set()
        assert go.wait(DEADLINE)

    def fork() -> None:
        queue.database.before_fork()
        forking.set()
        assert forked.wait(DEADLINE)
        queue.database.after_fork(child=False)

    with ThreadPoolExecutor(3) as pool:
        under_way = pool.submit(transact, work)
        assert begun.wait(DEADLINE)
        fork_ = pool.submit(fork)
        assert not forking.wait(0.05)
        go.set()
        assert forking.wait(DEADLINE)
        under_way.result(DEADLINE)
        late = pool.submit(transact, lambda connection: "late")
        assert not late.done()
        forked.set()
        fork_.result(DEADLINE)
        assert late.result(DEADLINE) == "late"


def test_a_database_in_memory_is_copied():
    database = SqliteDatabase(sa.make_url("sqlite://"), TABLES)
    TABLES.metadata.create_all(database.engine)
    queue = Queue(database)
    queue.append(message("a"))

    def work() -> list[str | None]:
        queue.append(message("b"))
        return queue.claimed()

    assert forked(work, database)() == ["a", "b"]
    assert queue.claimed() == ["a"]
    database.close()


def test_a_closed_database_forks(queue: Queue):
    queue.database.close()
    assert forked(lambda: "fine", queue.database)() == "fine"
