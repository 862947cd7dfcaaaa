"""What only `SQLLocker` has: a table, an engine beside the host's, restarts, and a busy file."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from queue_lib import InvalidOptionsError, StoreError, StoreUnavailableError, UnsupportedError
from queue_lib.lockers.lease import RESERVATION, Lease
from queue_lib.lockers.sql import SQLLocker, lock_table
from queue_lib.testing.conformance.case import together
from queue_lib.testing.locker_member import Member
from tests.servers import PostgresServer

AT_ONCE = timedelta(0)
LONG = timedelta(seconds=20)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    """The host's, with one connection in all."""
    engine = sa.create_engine(url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    yield engine
    engine.dispose()


def _eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG.total_seconds()
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _count_statements(locker: SQLLocker) -> list[str]:
    seen: list[str] = []
    engine: sa.Engine = locker._sql._database._engine  # type: ignore[attr-defined]
    sa.event.listen(engine, "before_cursor_execute", lambda *given: seen.append(given[2]))
    return seen


def test_a_lock_costs_one_statement_and_another_to_release(url: str):
    with SQLLocker(url) as locker:
        locker.acquire("k", AT_ONCE).release()
        seen = _count_statements(locker)
        locker.acquire("k", AT_ONCE).release()
        assert [text.split()[0] for text in seen if "BEGIN" not in text] == ["UPDATE", "UPDATE"]


def test_a_hundred_locks_are_renewed_by_one_statement(url: str):
    leases = [Lease(f"k{number}", f"owner {number}") for number in range(100)]
    with SQLLocker(url) as locker:
        for lease in leases:
            locker._leases.take(lease, LONG)
        seen = _count_statements(locker)
        assert len(locker._leases.renew(leases, LONG)) == 100
        assert len([text for text in seen if "BEGIN" not in text]) == 1


def test_it_works_beside_a_hosts_engine_whose_connections_are_all_in_use(engine: sa.Engine):
    with engine.connect() as theirs, SQLLocker(engine) as locker:
        assert locker.acquire("k", AT_ONCE).fence == 1
        assert theirs.execute(sa.text("SELECT 1")).scalar() == 1
    with engine.connect() as theirs:  # not disposed of either
        assert theirs.execute(sa.select(lock_table().c.fence)).scalar() == 1


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_it_needs_no_session(engine: sa.Engine):
    """As behind a pooler that gives each transaction another connection."""
    each = sa.create_engine(engine.url, poolclass=sa.NullPool)
    with SQLLocker(each, ttl=0.6) as one, SQLLocker(each, ttl=0.6) as other:
        held = one.acquire("k", AT_ONCE)
        with pytest.raises(StoreUnavailableError):
            other.acquire("k", timedelta(seconds=1))
        held.release()
        assert other.acquire("k", LONG).fence == 2
        with each.connect() as looking:
            locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
            assert looking.execute(sa.text(locks)).scalar() == 0
    each.dispose()


def test_the_table_is_created_once_whoever_comes_first(engine: sa.Engine, url: str):
    lockers = [SQLLocker(url) for _ in range(10)]
    together(10, lambda number: lockers[number].acquire(f"k{number}", LONG).release())
    together(10, lambda number: lockers[number].create_table())
    for locker in lockers:
        locker.close()
    assert sa.inspect(engine).get_table_names() == ["queue_locks"]


def test_fences_outlive_every_locker(url: str):
    for fence in (1, 2, 3):
        with SQLLocker(url) as locker:
            assert locker.acquire("k", AT_ONCE).fence == fence


def test_tables_of_other_names_hold_other_locks(engine: sa.Engine, url: str):
    host = sa.MetaData()
    lock_table("app_locks", metadata=host).metadata.create_all(engine)
    with SQLLocker(url) as one, SQLLocker(url, table="app_locks") as other:
        assert one.acquire("k", AT_ONCE).is_held()
        assert other.acquire("k", AT_ONCE).is_held()
    assert set(sa.inspect(engine).get_table_names()) == {"queue_locks", "app_locks"}


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_the_table_may_be_in_a_schema(engine: sa.Engine, url: str):
    with engine.begin() as connection:
        connection.execute(sa.schema.CreateSchema("app"))
    with SQLLocker(url, schema="app") as locker:
        assert locker.acquire("k", AT_ONCE).fence == 1
    assert sa.inspect(engine).get_table_names(schema="app") == ["queue_locks"]


@pytest.mark.slow
def test_a_dead_waiter_does_not_keep_its_place(url: str, engine: sa.Engine):
    with SQLLocker(url) as locker:
        held = locker.acquire("k", AT_ONCE)
        waiter = Member(partial(SQLLocker, url), LONG)
        waiter.hear()
        waiter.tell("acquire", "k", 60)
        row = lock_table().c

        def is_next() -> object:
            with engine.connect() as connection:
                return connection.execute(sa.select(row.next_owner)).scalar()

        _eventually(is_next)
        waiter.kill()
        time.sleep(0.11)  # from when on nobody may come first
        held.release()
        began = time.monotonic()
        assert locker.acquire("k", LONG).fence == 2
        assert time.monotonic() - began < RESERVATION.total_seconds() + 2


# -- servers that go away ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_held_lock_survives_a_restart(postgres_own_server: PostgresServer):
    server = postgres_own_server
    with SQLLocker(server.url(), ttl=6) as locker:
        handle = locker.acquire("k", AT_ONCE)
        server.restart()
        before = handle.held_until
        _eventually(lambda: handle.held_until > before)
        assert handle.is_held()
        assert locker.acquire("other", LONG).fence == 1
        handle.release()
        assert locker.acquire("k", LONG).fence == 2


@pytest.mark.slow
def test_who_waits_goes_on_after_a_crash_and_no_fence_comes_again(
    postgres_own_server: PostgresServer,
):
    server = postgres_own_server
    with SQLLocker(server.url(), ttl=0.5) as locker, ThreadPoolExecutor(1) as pool:
        held = locker.acquire("k", AT_ONCE)
        server.kill()
        with pytest.raises(StoreUnavailableError):
            locker.acquire("other", timedelta(seconds=0.1))
        held.release()  # cannot reach the server: the lease ends by itself
        waiting = pool.submit(locker.acquire, "k", LONG)
        server.start()
        assert waiting.result(LONG.total_seconds()).fence == 2


# -- SQLite ----------------------------------------------------------------------------------------


def test_a_busy_file_is_waited_for_no_longer_than_allowed(sqlite_url: str):
    with SQLLocker(sqlite_url) as locker:
        locker.create_table()
        file = sqlite3.connect(str(sa.make_url(sqlite_url).database), isolation_level=None)
        file.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="locked"):
            locker.acquire("k", timedelta(seconds=0.3))
        assert 0.3 <= time.monotonic() - began < 2
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(locker.acquire, "k", LONG)
            file.execute("COMMIT")
            assert waiting.result(LONG.total_seconds()).fence == 1
        file.close()


def test_a_hosts_file_keeps_its_journal_and_a_file_of_ours_gets_a_better_one(tmp_path: Path):
    for given, mode in ((sa.create_engine, "delete"), (str, "wal")):
        url = f"sqlite:///{tmp_path / mode}"
        with SQLLocker(given(url)) as locker:
            locker.acquire("k", AT_ONCE).release()
        file = sqlite3.connect(tmp_path / mode)
        assert file.execute("PRAGMA journal_mode").fetchone() == (mode,)
        file.close()


_FORKED = """
import os, sys
from datetime import timedelta
from pathlib import Path
from queue_lib.lockers.sql import SQLLocker

path = Path(sys.argv[1])
locker = SQLLocker(f"sqlite:///{path}")
handle = locker.acquire("k", timedelta(0))
child = os.fork()
if child == 0:
    files = {Path(f"/proc/self/fd/{name}").resolve() for name in os.listdir("/proc/self/fd")}
    os._exit(7 if path not in files else 8)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
handle.release()
assert locker.acquire("k", timedelta(0)).fence == 2
"""


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc here to look into")
def test_a_forked_child_has_no_connection_of_its_parent(tmp_path: Path):
    """Else SQLite would believe that the child holds the parent's locks on the file."""
    command = [sys.executable, "-c", _FORKED, str(tmp_path / "locks.db")]
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True, timeout=30)


@pytest.mark.parametrize("target", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(target: str):
    with pytest.raises(UnsupportedError, match="ProcessLocker"):
        SQLLocker(target)


def test_what_it_does_not_know_is_refused(sqlite_url: str):
    with pytest.raises(UnsupportedError, match="'memory'"):
        SQLLocker(sa.make_url("memory://"))
    with pytest.raises(UnsupportedError, match="SQLite has none"):
        SQLLocker(sqlite_url, schema="app")
    with pytest.raises(InvalidOptionsError, match="not a database URL") as caught:
        SQLLocker("postgresql://me:secret@host:port/app")
    assert "secret" not in str(caught.value)


def test_an_error_of_the_database_is_not_tried_again(tmp_path: Path):
    path = tmp_path / "no database"
    path.write_bytes(b"x" * 10_000)
    with SQLLocker(f"sqlite:///{path}") as locker:
        with pytest.raises(StoreError, match="not a database") as caught:
            locker.acquire("k", LONG)
        assert not isinstance(caught.value, StoreUnavailableError)
