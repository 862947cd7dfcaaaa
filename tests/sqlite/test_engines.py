"""The host's engine is left alone; ours are as they must be."""

from __future__ import annotations

import gc
import logging
import sqlite3
import warnings
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from queue_lib.errors import SchemaError, StoreError, UnsupportedError
from queue_lib.message import Message
from queue_lib.options import StartFrom
from queue_lib.stores.schema import build_tables
from queue_lib.stores.sql.dialect import Connection
from queue_lib.stores.sql.open import open_sql_store
from queue_lib.stores.sql.sqlite import SqliteDatabase, SqliteStatements
from tests.sqlite.support import NOW, TABLES, Queue, message, open_files, write_lock


def pragma(connection: Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def test_publishes_are_synced_and_the_rest_is_not(database: SqliteDatabase):
    assert database.write(pragma, "synchronous") == 1
    assert database.write_durably(pragma, "synchronous") == 2
    assert database.write_durably(pragma, "synchronous") == 2
    assert database.write(pragma, "synchronous") == 1
    assert database.write(pragma, "journal_mode") == "wal"
    assert database.write(pragma, "journal_size_limit") == 64 << 20


def test_a_host_engine_stays_as_it_was(url: sa.URL):
    host = sa.create_engine(url, pool_size=1, max_overflow=0, connect_args={"timeout": 1})
    keyed: list[object] = []
    begun: list[object] = []
    sa.event.listen(host, "connect", lambda driver, _: keyed.append(driver))
    sa.event.listen(host, "begin", begun.append)
    database = SqliteDatabase(host, TABLES)
    with host.connect() as theirs:  # the only connection that the host's pool has
        queue = Queue(database)
        queue.append(message("a"))
        assert queue.claimed() == ["a"]
        # Its connect hooks hold for our two connections as well, its other hooks do not.
        assert (len(keyed), len(begun)) == (3, 0)
        with write_lock(url):
            assert theirs.exec_driver_sql("select count(*) from queue_topics").scalar() == 1
        driver: Any = theirs.connection.driver_connection
        assert driver.isolation_level == ""
        assert pragma(driver, "busy_timeout") == 1000
        theirs.exec_driver_sql("delete from queue_topics")
        theirs.rollback()
    database.close()
    with host.connect() as theirs:
        assert theirs.exec_driver_sql("select count(*) from queue_topics").scalar() == 1
    host.dispose()


@pytest.mark.parametrize(
    "arguments",
    [
        {"poolclass": sa.NullPool},
        {"isolation_level": "AUTOCOMMIT"},
        {"connect_args": {"isolation_level": "IMMEDIATE"}},
        {"connect_args": {"isolation_level": None}},
    ],
)
def test_any_way_of_making_transactions_will_do(url: sa.URL, arguments: dict[str, Any]):
    host = sa.create_engine(url, **arguments)
    database = SqliteDatabase(host, TABLES)
    queue = Queue(database)

    def fail(connection: Connection) -> None:
        queue.sql.append(connection, [message("lost")], NOW)
        raise LookupError

    with pytest.raises(LookupError):
        database.write(fail)
    queue.append(message("a"))
    assert queue.claimed() == ["a"]
    database.close()
    host.dispose()


def test_nothing_is_left_open(url: sa.URL):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        database = SqliteDatabase(url, TABLES)
        queue = Queue(database)
        queue.append(message("a"))
        assert open_files(url) > 0
        database.close()
        assert open_files(url) == 0
        del database, queue
        gc.collect()


def test_our_own_file_is_put_into_wal_mode_and_a_hosts_file_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    url = sa.URL.create("sqlite", database=str(tmp_path / "new.db"))
    host = sa.create_engine(url)
    with caplog.at_level(logging.WARNING, "queue_lib.sqlite"):
        database = SqliteDatabase(host, TABLES)
        assert database.write(pragma, "journal_mode") == "delete"
        database.before_fork()
        database.after_fork(child=False)
        assert database.write(pragma, "journal_mode") == "delete"
        database.close()
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        caplog.clear()
        database = SqliteDatabase(url, TABLES)
        assert database.write(pragma, "journal_mode") == "wal"
        database.close()
        assert not caplog.records
    host.dispose()


def test_a_schema_is_refused(url: sa.URL):
    with pytest.raises(UnsupportedError, match="table prefix"):
        SqliteDatabase(url, build_tables(schema="main"))


def test_another_prefix_is_another_queue(url: sa.URL):
    tables = build_tables("jobs_")
    database = SqliteDatabase(url, tables)
    sql = SqliteStatements(tables)
    tables.metadata.create_all(database.engine)
    database.write(sql.ensure_group, "orders", "billing", False, NOW)
    assert database.read(sql.find_group, "orders", "billing") == 1
    assert database.read(SqliteStatements(TABLES).find_group, "orders", "billing") is None
    database.close()


@pytest.mark.parametrize(
    "damage",
    ["drop table queue_deliveries", "alter table queue_messages rename column headers to heads"],
)
def test_missing_tables_and_columns_are_a_schema_error(url: sa.URL, damage: str):
    store = open_sql_store(url)
    store.ensure_group("orders", "billing", StartFrom.LATEST)
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        connection.exec_driver_sql(damage)
    with pytest.raises(SchemaError, match="alembic upgrade head"):
        store.append([Message("orders", id="a")])
    store.close()


def test_a_fault_of_ours_is_no_schema_error(database: SqliteDatabase):
    with pytest.raises(sqlite3.OperationalError) as raised:
        database.read(lambda connection: connection.execute("select nonsense"))
    assert database.classify(raised.value) is StoreError


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path):
    database = SqliteDatabase(sa.make_url(f"sqlite:///{tmp_path}/missing/queue.db"), TABLES)
    for transact in (database.read, database.write, database.write_durably):
        with pytest.raises(StoreError, match=r"missing/queue\.db: its folder must exist"):
            transact(lambda connection: None)
    database.close()


def test_a_file_that_cannot_be_written_is_named(url: sa.URL):
    database = SqliteDatabase(
        sa.make_url(f"sqlite:///file:{url.database}?mode=ro&uri=true"), TABLES
    )
    with pytest.raises(StoreError, match="must be writable"):
        database.write(SqliteStatements(TABLES).ensure_group, "orders", "billing", False, NOW)
    database.close()
