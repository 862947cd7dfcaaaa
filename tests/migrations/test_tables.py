"""The migrated tables are the tables that the stores use, and they come and go without a trace."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from queue_lib import (
    InvalidOptionsError,
    SchemaError,
    StoreError,
    StoreUnavailableError,
    UnsupportedError,
    migrate,
    open_queue,
)
from queue_lib.stores.schema import DEAD, Tables, build_tables
from tests.migrations.inspection import contents, expected_contents, relations

_ROWS: dict[str, list[dict[str, Any]]] = {
    "topics": [{"name": "orders"}],
    "groups": [{"topic_id": 1, "name": "billing", "created_at": 5}],
    "messages": [
        {
            "seq": seq,
            "id": f"m{seq}",
            "topic_id": 1,
            "key": None,
            "payload": bytes(range(256)),
            "headers": None,
            "priority": 0,
            "deliver_at": 0,
            "published_at": 1,
            "stored_at": 2,
            "untaken": False,
        }
        for seq in (1, 2)
    ],
    "deliveries": [{"group_id": 1, "seq": 1, "state": DEAD, "priority": 0, "attempts": 3, "at": 7}],
}


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(database_url)
    yield engine
    engine.dispose()


def _revisions() -> list[str]:
    script = ScriptDirectory.from_config(migrate.alembic_config())
    return [revision.revision for revision in script.walk_revisions()][::-1]


@pytest.mark.parametrize("prefix", ["queue_", "jobs_", "_"])
def test_head_is_what_the_stores_use(engine, prefix):
    tables = build_tables(prefix)
    with engine.begin() as connection:
        expected = expected_contents(connection, tables)
    migrate.upgrade(engine, table_prefix=prefix)
    with engine.connect() as connection:
        assert contents(connection, tables) == expected


def test_head_in_a_schema_is_what_the_stores_use(postgres_url):
    tables = build_tables(schema="messaging")
    engine = sa.create_engine(postgres_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        expected = expected_contents(connection, tables)
        connection.execute(sa.schema.DropSchema("messaging"))  # upgrade makes it
    migrate.upgrade(postgres_url, schema="messaging")
    with engine.connect() as connection:
        assert contents(connection, tables) == expected
        assert relations(connection) == set()
        assert tables.version_table in relations(connection, "messaging")
    migrate.downgrade(postgres_url, revision="base", schema="messaging")
    with engine.connect() as connection:
        assert relations(connection, "messaging") == set()


def test_alembic_itself_finds_nothing_to_do(database_url):
    migrate.upgrade(database_url)
    command.check(migrate.alembic_config(database_url))


def test_alembic_itself_finds_nothing_to_do_in_a_schema(postgres_url):
    migrate.upgrade(postgres_url, schema="messaging", table_prefix="mq_")
    command.check(migrate.alembic_config(postgres_url, schema="messaging", table_prefix="mq_"))


def test_base_leaves_nothing_and_head_comes_back(engine):
    for _ in range(2):
        migrate.upgrade(engine)
        assert migrate.current(engine) == _revisions()[-1]
        with engine.connect() as connection:
            assert {"queue_messages", "queue_lib_version"} <= relations(connection)
        migrate.downgrade(engine, revision="base")
        assert migrate.current(engine) is None
        with engine.connect() as connection:
            assert relations(connection) == set()


def test_each_step_can_be_taken_back(database_url):
    for revision in _revisions():
        migrate.upgrade(database_url, revision="+1")
        assert migrate.current(database_url) == revision
        migrate.downgrade(database_url, revision="-1")
        migrate.upgrade(database_url, revision=revision)


def test_rows_survive_from_the_first_revision_to_head(engine):
    tables = build_tables()
    migrate.upgrade(engine, revision="ql0001")
    with engine.begin() as connection:
        for name, rows in _ROWS.items():
            connection.execute(_table(tables, name).insert(), rows)
    migrate.upgrade(engine)
    with engine.connect() as connection:
        for name, rows in _ROWS.items():
            table = _table(tables, name)
            found = connection.execute(sa.select(table).order_by(*table.primary_key.columns))
            assert [
                {column: row[column] for column in given}
                for row, given in zip(found.mappings(), rows, strict=True)
            ] == rows


def test_an_argument_goes_before_the_environment(database_url, monkeypatch):
    monkeypatch.setenv("QUEUE_LIB_TABLE_PREFIX", "other_")
    monkeypatch.setenv("QUEUE_LIB_SCHEMA", "other")
    monkeypatch.setenv("QUEUE_LIB_DATABASE_URL", "sqlite:////no/such/folder/q.db")
    migrate.upgrade(database_url)
    assert migrate.current(database_url) is not None


def test_the_environment_is_used(postgres_url, monkeypatch):
    monkeypatch.setenv("QUEUE_LIB_TABLE_PREFIX", "other_")
    monkeypatch.setenv("QUEUE_LIB_SCHEMA", "messaging")
    monkeypatch.setenv("QUEUE_LIB_DATABASE_URL", postgres_url)
    config = Config()
    config.set_main_option("script_location", str(migrate.script_location()).replace("%", "%%"))
    command.upgrade(config, "head")
    where = {"schema": "messaging", "table_prefix": "other_"}
    assert migrate.current(postgres_url, **where) is not None


def test_threads_migrate_one_after_the_other(engine):
    barrier = threading.Barrier(4)
    done: list[str | None] = []

    def run() -> None:
        barrier.wait(10)
        migrate.upgrade(engine)
        done.append(migrate.current(engine))

    threads = [threading.Thread(target=run, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert done == [_revisions()[-1]] * 4


def test_a_failing_revision_leaves_nothing(engine):
    with engine.begin() as connection:  # in the way of the last table
        connection.execute(sa.text("CREATE TABLE queue_deliveries (x INTEGER)"))
    with pytest.raises(StoreError, match="queue_deliveries"):
        migrate.upgrade(engine)
    with engine.connect() as connection:
        assert relations(connection) == {"queue_deliveries"}


def test_two_queues_share_a_database(engine):
    migrate.upgrade(engine)
    migrate.upgrade(engine, table_prefix="other_")
    migrate.downgrade(engine, revision="base")
    assert migrate.current(engine) is None
    assert migrate.current(engine, table_prefix="other_") == _revisions()[-1]


def test_a_database_of_a_later_release_is_refused(engine):
    migrate.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE queue_lib_version SET version_num = 'ql9999'"))
    with pytest.raises(SchemaError, match="ql9999"):
        migrate.upgrade(engine)


def test_the_callers_transaction_decides(engine):
    with engine.connect() as connection, connection.begin() as transaction:
        migrate.upgrade(connection)
        assert migrate.current(connection) is not None
        transaction.rollback()
    with engine.connect() as connection:
        assert relations(connection) == set()
    with engine.connect() as connection:
        migrate.upgrade(connection)  # in no transaction yet: commits
    with engine.connect() as connection:
        assert "queue_messages" in relations(connection)


def test_autocommit_is_refused(postgres_url):
    engine = sa.create_engine(postgres_url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(UnsupportedError, match="autocommit"):
        migrate.upgrade(connection)
    migrate.upgrade(engine)  # an engine is used in a way of ours
    assert migrate.current(engine) is not None


def test_sqlite_is_in_wal_mode_afterwards(sqlite_url):
    migrate.upgrade(sqlite_url)
    engine = sa.create_engine(sqlite_url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_looking_makes_no_file(sqlite_url, tmp_path):
    assert migrate.current(sqlite_url) is None
    with pytest.raises(StoreError, match=r"queue\.db: there is no such file$"):
        migrate.downgrade(sqlite_url, revision="base")
    assert list(tmp_path.iterdir()) == []


def test_looking_changes_nothing(sqlite_url, tmp_path):
    (tmp_path / "queue.db").touch()
    assert migrate.current(sqlite_url) is None
    engine = sa.create_engine(sqlite_url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        assert relations(connection) == set()
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "delete"


def test_an_engine_in_memory_keeps_its_tables():
    engine = sa.create_engine("sqlite:///file:/migrated?vfs=memdb&uri=true")
    with engine.connect() as connection:  # the database lives as long as a connection
        migrate.upgrade(engine)
        assert "queue_messages" in relations(connection)
    engine.dispose()


@pytest.mark.parametrize(
    ("url", "arguments", "error"),
    [
        ("sqlite://", {}, UnsupportedError),  # would be gone at once: no silent success
        ("mysql://h/d", {}, UnsupportedError),
        ("sqlite:///unused.db", {"schema": "messaging"}, UnsupportedError),
        ("sqlite:///unused.db", {"table_prefix": "no good"}, InvalidOptionsError),
        ("sqlite:////no/such/folder/q.db", {}, StoreError),
        ("not a url", {}, InvalidOptionsError),
    ],
)
def test_what_cannot_be_migrated_is_refused(url, arguments, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        migrate.upgrade(url, **arguments)


@pytest.mark.parametrize("revision", [None, 5, b"head"])
def test_a_revision_is_a_text(sqlite_url, revision):
    with pytest.raises(InvalidOptionsError, match=r"^revision .*: must be a string$"):
        migrate.upgrade(sqlite_url, revision=revision)
    with pytest.raises(InvalidOptionsError, match=r"^revision .*: must be a string$"):
        migrate.downgrade(sqlite_url, revision=revision)


@pytest.mark.parametrize(
    "driver",
    ["postgresql+psycopg", "postgresql+psycopg2", "clickhouse+native", "clickhouse+http"],
)
def test_a_server_that_is_away_is_unavailable_as_it_is_for_the_store(driver):
    if driver.startswith("clickhouse"):
        pytest.importorskip("clickhouse_sqlalchemy")
    url = f"{driver}://u:p@127.0.0.1:1/d"
    for call in (
        lambda: migrate.upgrade(url),
        lambda: migrate.current(url),
        lambda: open_queue(url, migrate=True),
    ):
        with pytest.raises(StoreUnavailableError, match="refused"):
            call()


def test_a_missing_folder_is_told_as_by_the_store(tmp_path):
    url = f"sqlite:///{tmp_path}/missing/q.db"
    with open_queue(url) as queue, pytest.raises(StoreError) as by_the_store:
        queue.ping()
    for call in (lambda: migrate.upgrade(url), lambda: open_queue(url, migrate=True)):
        with pytest.raises(StoreError) as caught:
            call()
        assert (
            str(caught.value)
            == str(by_the_store.value)
            == (
                f"unable to open database file: {tmp_path}/missing/q.db: "
                "its folder must exist, and be writable"
            )
        )
        assert isinstance(caught.value.__cause__, sa.exc.OperationalError)


def _table(tables: Tables, name: str) -> sa.Table:
    table: sa.Table = getattr(tables, name)
    return table
