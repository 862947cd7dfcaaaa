"""Publishing in the caller's transaction, whatever transactions the caller's engine makes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from queue_lib.errors import SchemaError, StoreError, StoreUnavailableError, UnsupportedError
from queue_lib.message import Message
from queue_lib.options import StartFrom
from queue_lib.stores.base import ClaimRequest
from queue_lib.stores.sql.open import open_sql_store
from queue_lib.stores.sql.sqlite import SqliteDatabase, prepare_sqlite_engine
from queue_lib.stores.sql.store import SqlStore
from tests.sqlite.support import NOW, write_lock

HasEngine = Callable[[str], sa.Engine]
new_driver = sys.version_info >= (3, 12)
SOUND = ["default", "prepared", "immediate", *(["autocommit=False"] if new_driver else [])]
WITHOUT_TRANSACTIONS = [
    "AUTOCOMMIT",
    "isolation_level=None",
    *(["autocommit=True"] if new_driver else []),
]
# Those in which a transaction begins where SQLAlchemy says so, and a read is part of it.
STRICT = ["prepared", *(["autocommit=False"] if new_driver else [])]

_ENGINES: dict[str, dict[str, Any]] = {
    "default": {},
    "prepared": {},
    "immediate": {"connect_args": {"isolation_level": "IMMEDIATE"}},
    "autocommit=False": {"connect_args": {"autocommit": False}},
    "AUTOCOMMIT": {"isolation_level": "AUTOCOMMIT"},
    "isolation_level=None": {"connect_args": {"isolation_level": None}},
    "autocommit=True": {"connect_args": {"autocommit": True}},
}


@pytest.fixture
def store(url: sa.URL) -> Iterator[SqlStore]:
    store = open_sql_store(url, clock=lambda: NOW)
    store.ensure_group("orders", "billing", StartFrom.LATEST)
    yield store
    store.close()


@pytest.fixture
def host(url: sa.URL) -> Iterator[HasEngine]:
    engines = []

    def make(kind: str) -> sa.Engine:
        engine = sa.create_engine(url.update_query_dict({"timeout": "0.2"}), **_ENGINES[kind])
        if kind == "prepared":
            prepare_sqlite_engine(engine)
            prepare_sqlite_engine(engine)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.dispose()


def published(store: SqlStore) -> int:
    return store.stats("orders", "billing").pending


@pytest.mark.parametrize("kind", SOUND)
def test_a_message_lives_and_dies_with_the_callers_transaction(
    store: SqlStore, host: HasEngine, kind: str
):
    with host(kind).connect() as connection:
        store.append_in(connection, [Message("orders", id="gone")])
        assert published(store) == 0
        connection.rollback()
        assert published(store) == 0
        connection.exec_driver_sql("create table theirs (a)")
        connection.commit()
        connection.exec_driver_sql("insert into theirs values (1)")
        store.append_in(connection, [Message("orders", id="a"), Message("orders", id="b")])
        store.append_in(connection, [Message("orders", id="a"), Message("orders", id="c")])
        assert connection.in_transaction()
        assert published(store) == 0
        connection.commit()
        assert published(store) == 3
        assert connection.exec_driver_sql("select count(*) from theirs").scalar() == 1


@pytest.mark.parametrize("kind", STRICT)
def test_a_message_dies_with_its_savepoint(store: SqlStore, host: HasEngine, kind: str):
    with host(kind).begin() as connection:
        with connection.begin_nested():
            store.append_in(connection, [Message("orders", id="kept")])
        with connection.begin_nested() as savepoint:
            store.append_in(connection, [Message("orders", id="gone")])
            savepoint.rollback()
    claims = store.claim(_request(9))
    assert [claim.message.id for claim in claims] == ["kept"]


@pytest.mark.parametrize("kind", SOUND)
def test_a_session_is_as_good_as_a_connection(store: SqlStore, host: HasEngine, kind: str):
    engine = host(kind)
    with Session(engine) as session:
        store.append_in(session, [Message("orders", id="gone")])
        session.rollback()
        store.append_in(session, [Message("orders", id="kept")])
        session.commit()
    assert published(store) == 1


@pytest.mark.parametrize("kind", WITHOUT_TRANSACTIONS)
def test_a_connection_on_autocommit_is_refused(store: SqlStore, host: HasEngine, kind: str):
    with host(kind).connect() as connection:
        with pytest.raises(UnsupportedError, match="autocommit"):
            store.append_in(connection, [Message("orders", id="a")])
        connection.commit()
    assert published(store) == 0


@pytest.mark.parametrize("kind", SOUND)
def test_autocommit_as_an_option_of_a_connection_is_refused(
    store: SqlStore, host: HasEngine, kind: str
):
    with host(kind).connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        driver: Any = connection.connection.driver_connection
        if not driver.in_transaction:
            with pytest.raises(UnsupportedError, match="autocommit"):
                store.append_in(connection, [Message("orders", id="a")])
    assert published(store) == 0


def test_another_kind_of_database_is_refused(database: SqliteDatabase):
    connection: Any = SimpleNamespace(dialect=SimpleNamespace(name="postgresql"))
    with pytest.raises(UnsupportedError, match="postgresql"):
        database.borrow(connection)


@pytest.mark.parametrize("kind", STRICT)
def test_a_transaction_that_has_read_an_older_state_is_told_what_helps(
    store: SqlStore, host: HasEngine, kind: str
):
    with host(kind).connect() as connection:
        connection.exec_driver_sql("select * from queue_topics").all()
        store.append([Message("orders", id="of another")])
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match="roll it back and run all of it"):
                store.append_in(connection, [Message("orders", id="a")])
        connection.rollback()
        store.append_in(connection, [Message("orders", id="a")])
        connection.commit()
    assert published(store) == 2


@pytest.mark.parametrize("kind", STRICT)
def test_a_transaction_that_has_read_nothing_does_not_mind_others(
    store: SqlStore, host: HasEngine, kind: str
):
    with host(kind).begin() as connection:
        store.append([Message("orders", id="of another")])
        store.append_in(connection, [Message("orders", id="a")])
    assert published(store) == 2


@pytest.mark.parametrize("kind", SOUND)
def test_a_lock_that_stays_taken_is_unavailable(
    store: SqlStore, host: HasEngine, url: sa.URL, kind: str
):
    with host(kind).connect() as connection:
        with write_lock(url), pytest.raises(StoreUnavailableError, match="database is locked"):
            store.append_in(connection, [Message("orders", id="a")])
        store.append_in(connection, [Message("orders", id="a")])
        connection.commit()
    assert published(store) == 1


@pytest.mark.parametrize("kind", SOUND)
def test_what_fails_half_way_leaves_nothing_for_a_caller_that_commits(
    store: SqlStore, host: HasEngine, kind: str, monkeypatch: pytest.MonkeyPatch
):
    statements: Any = store._sql
    with host(kind).connect() as connection:
        store.append_in(connection, [Message("orders", id="kept")])
        with monkeypatch.context() as patch:
            patch.setitem(statements._sql, "fan_out_unkeyed", "select json('broken')")
            with pytest.raises(StoreError, match="malformed JSON"):
                store.append_in(connection, [Message("orders", id="broken")])
        connection.commit()
    assert published(store) == 1
    store.append([Message("orders", id="broken")])
    assert published(store) == 2


@pytest.mark.parametrize("kind", SOUND)
def test_a_connection_to_a_database_without_the_tables_is_a_schema_error(
    store: SqlStore, tmp_path: Path, kind: str
):
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'another.db'}", **_ENGINES[kind])
    with engine.connect() as connection:
        with pytest.raises(SchemaError, match=r"migrate.*\(no such table: queue_topics\)$"):
            store.append_in(connection, [Message("orders", id="a")])
        connection.rollback()
    engine.dispose()


def test_a_session_must_be_bound(store: SqlStore):
    for session in (Session(), scoped_session(sessionmaker())):
        with pytest.raises(UnsupportedError, match=r"^connection Session: must be bound to an en"):
            store.append_in(session, [Message("orders", id="a")])
        session.close()


def test_missing_tables_are_a_schema_error(tmp_path: Path):
    url = sa.URL.create("sqlite", database=str(tmp_path / "empty.db"))
    store, engine = open_sql_store(url), sa.create_engine(url)
    with engine.connect() as connection, pytest.raises(SchemaError, match="migrate"):
        store.append_in(connection, [Message("orders", id="a")])
    engine.dispose()
    store.close()


def _request(limit: int) -> ClaimRequest:
    return ClaimRequest("orders", "billing", "runner", limit, timedelta(seconds=30))
