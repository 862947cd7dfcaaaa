"""Databases in memory: several connections, one database, gone at the close."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from queue_lib import migrate
from queue_lib.errors import UnsupportedError
from queue_lib.stores.sql.sqlite import SqliteDatabase
from queue_lib.testing.conformance.case import together
from tests.sqlite.support import TABLES, Queue, message


@pytest.fixture
def database() -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(sa.make_url("sqlite:///:memory:"), TABLES)
    TABLES.metadata.create_all(database.engine)
    yield database
    database.close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///:memory:?timeout=1"])
def test_the_migrations_run_on_it(url: str):
    database = SqliteDatabase(sa.make_url(url), TABLES)
    migrate.upgrade(database.migration_target)
    queue = Queue(database)
    queue.append(message("a"))
    assert queue.claimed() == ["a"]
    database.close()


def test_eight_threads_share_it(queue: Queue):
    def work(number: int) -> list[str | None]:
        for index in range(25):
            queue.append(message(f"{number}-{index}", key=f"k{index % 3}"))
        seen: list[str | None] = []
        while rows := queue.claim(5)[0]:
            queue.settle(rows)
            seen += [row.id for row in rows]
        return seen

    seen = [name for names in together(8, work) for name in names]
    seen += queue.claimed()
    while rows := queue.claim()[0]:
        queue.settle(rows)
        seen += [row.id for row in rows]
    assert len(seen) == len(set(seen))
    assert queue.rows("select count(*) from {q}messages") == [(200,)]


def test_it_outlives_every_connection_but_is_its_owners_alone(queue: Queue):
    queue.append(message("a"))
    queue.database.before_fork()  # closes all connections that are not needed to keep it
    queue.database.after_fork(child=False)
    assert queue.claimed() == ["a"]
    other = SqliteDatabase(sa.make_url("sqlite://"), TABLES)
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        Queue(other)
    other.close()


def test_there_is_nobody_to_listen_to(database: SqliteDatabase):
    with pytest.raises(UnsupportedError):
        database.listen(lambda topic: None, threading.Event())


@pytest.mark.parametrize(
    "arguments",
    [
        {"poolclass": sa.StaticPool, "connect_args": {"check_same_thread": False}},
        {"poolclass": sa.SingletonThreadPool},
    ],
)
def test_an_engine_in_memory_that_cannot_be_shared_is_refused(arguments: dict[str, Any]):
    engine = sa.create_engine("sqlite://", **arguments)
    with pytest.raises(UnsupportedError, match="an engine on a file"):
        SqliteDatabase(engine, TABLES)
    engine.dispose()


def test_an_engine_whose_connections_are_strangers_is_refused_when_it_is_used():
    engine = sa.create_engine("sqlite://", poolclass=sa.QueuePool)
    database = SqliteDatabase(engine, TABLES)
    for transact in (database.read, database.write):
        with pytest.raises(UnsupportedError, match="an engine on a file"):
            transact(lambda connection: None)
    database.close()
    engine.dispose()


@pytest.mark.skipif(sqlite3.sqlite_version_info < (3, 36), reason="no memdb")
def test_an_engine_in_shared_memory_is_welcome():
    engine = sa.create_engine(f"sqlite:///file:/host-{os.getpid()}?vfs=memdb&uri=true")
    with engine.connect():
        database = SqliteDatabase(engine, TABLES)
        TABLES.metadata.create_all(engine)
        queue = Queue(database)
        queue.append(message("a"))
        assert queue.claimed() == ["a"]
        database.close()
    engine.dispose()


def test_an_old_library_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite3.dbapi2, "sqlite_version_info", (3, 35, 5))
    with pytest.raises(UnsupportedError, match=r"SQLite 3\.35: at least 3\.36"):
        SqliteDatabase(sa.make_url("sqlite://"), TABLES)
    monkeypatch.setattr(sqlite3.dbapi2, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(UnsupportedError, match=r"SQLite 3\.34: at least 3\.35"):
        SqliteDatabase(sa.make_url("sqlite:///any.db"), TABLES)
