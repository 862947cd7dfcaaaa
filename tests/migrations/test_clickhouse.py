"""The same migrations on ClickHouse: there and back, by all ways in, and many at once."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sqlalchemy as sa
from alembic import command

from queue_lib import (
    InvalidOptionsError,
    ProcessLocker,
    SchemaError,
    StoreUnavailableError,
    migrate,
    open_queue,
)
from tests.clickhouse_server import ClickHouseServer

TABLES = {"queue_fence", "queue_lib_version", "queue_live", "queue_messages"}

# Everything that takes time is loaded before the parent gives the word.
_CHILD = """
import sys
from alembic import command
from queue_lib import migrate
import clickhouse_sqlalchemy
config = migrate.alembic_config(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[2] == "api":
    migrate.upgrade(sys.argv[1])
else:
    command.upgrade(config, "head")
"""


def tables(server: ClickHouseServer, database: str) -> set[str]:
    return set(server.execute(f"SHOW TABLES FROM {database}").split())


def test_base_leaves_nothing_and_head_comes_back(
    clickhouse_server, clickhouse_database, clickhouse_url
):
    for _ in range(2):
        migrate.upgrade(clickhouse_url)
        migrate.upgrade(clickhouse_url)
        assert migrate.current(clickhouse_url) == "ql0001"
        assert tables(clickhouse_server, clickhouse_database) == TABLES
        migrate.downgrade(clickhouse_url, revision="base")
        assert migrate.current(clickhouse_url) is None
        assert tables(clickhouse_server, clickhouse_database) == set()


def test_alembic_itself_finds_nothing_to_do(clickhouse_url):
    migrate.upgrade(clickhouse_url)
    command.check(migrate.alembic_config(clickhouse_url))


def test_alembic_itself_sees_a_column_that_is_missing(
    clickhouse_server, clickhouse_database, clickhouse_url
):
    migrate.upgrade(clickhouse_url)
    clickhouse_server.execute(f"ALTER TABLE {clickhouse_database}.queue_live DROP COLUMN start")
    with pytest.raises(Exception, match="start"):
        command.check(migrate.alembic_config(clickhouse_url))


def test_another_database_and_prefix(clickhouse_server, clickhouse_url):
    clickhouse_server.execute("CREATE DATABASE IF NOT EXISTS messaging ENGINE = Atomic")
    where = {"schema": "messaging", "table_prefix": "mq_"}
    engine = sa.create_engine(clickhouse_url)
    try:
        migrate.upgrade(engine, **where)
        assert migrate.current(engine, **where) == "ql0001"
        assert migrate.current(engine) is None
        assert "mq_live" in tables(clickhouse_server, "messaging")
        command.check(migrate.alembic_config(engine, **where))
        clickhouse_server.execute("ALTER TABLE messaging.mq_live DROP COLUMN start")
        with pytest.raises(Exception, match="start"):
            command.check(migrate.alembic_config(engine, **where))
        migrate.downgrade(engine, revision="base", **where)
        assert tables(clickhouse_server, "messaging") == set()
    finally:
        engine.dispose()
        clickhouse_server.drop_database("messaging")


def test_a_database_of_a_later_release_is_refused(
    clickhouse_server, clickhouse_database, clickhouse_url
):
    migrate.upgrade(clickhouse_url)
    version = f"{clickhouse_database}.queue_lib_version"
    clickhouse_server.execute(f"INSERT INTO {version} VALUES ('ql9999')")
    clickhouse_server.execute(
        f"ALTER TABLE {version} DELETE WHERE version_num != 'ql9999' SETTINGS mutations_sync = 2"
    )
    with pytest.raises(SchemaError, match="ql9999"):
        migrate.upgrade(clickhouse_url)


def test_one_that_was_cut_off_is_reported(
    clickhouse_server, clickhouse_database, clickhouse_url, monkeypatch
):
    from queue_lib.stores.clickhouse import migration

    monkeypatch.setattr(migration, "_PATIENCE", 0.1)
    mark = f"{clickhouse_database}.queue_lib_migrating"
    clickhouse_server.execute(f"CREATE TABLE {mark} (x UInt8) ENGINE = Memory")
    with pytest.raises(StoreUnavailableError, match=r"DROP TABLE .*queue_lib_migrating"):
        migrate.upgrade(clickhouse_url)
    clickhouse_server.execute(f"DROP TABLE {mark}")
    migrate.upgrade(clickhouse_url)


def test_the_command_line(clickhouse_server, clickhouse_database, clickhouse_url, capsys):
    from queue_lib.cli import main

    assert main(["migrate", clickhouse_url]) == 0
    assert "ql0001" in capsys.readouterr().out
    assert main(["stats", clickhouse_url, "orders", "billing"]) == 1
    assert "topic orders: has no group billing" in capsys.readouterr().err
    with open_queue(clickhouse_url, locker=ProcessLocker()) as queue:
        queue.subscribe("orders", "billing", print)
    assert main(["stats", clickhouse_url, "orders", "billing"]) == 0
    assert "ready            0" in capsys.readouterr().out
    assert main(["downgrade", "--revision", "base", clickhouse_url]) == 0
    assert tables(clickhouse_server, clickhouse_database) == set()


def test_a_bad_prefix_is_refused(clickhouse_url):
    with pytest.raises(InvalidOptionsError):
        migrate.upgrade(clickhouse_url, table_prefix="a-b")


@pytest.mark.slow
@pytest.mark.processes
def test_processes_that_migrate_at_once(clickhouse_server, clickhouse_database):
    url = clickhouse_server.url(clickhouse_database)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _CHILD, url, ("api", "command")[number % 2]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(6)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        errors = [child.communicate()[1] for child in children]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    assert [child.returncode for child in children] == [0] * 6, errors
    assert tables(clickhouse_server, clickhouse_database) == TABLES
