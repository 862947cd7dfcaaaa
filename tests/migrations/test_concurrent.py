"""Ten processes that start together, as the workers of a web server do."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
import sqlalchemy as sa

from queue_lib import migrate
from queue_lib.stores.schema import build_tables
from tests.migrations.inspection import contents, expected_contents

_PROCESSES = 10

# Everything that takes time is loaded before the parent gives the word.
_CHILD = """
import sys
from alembic import command
from queue_lib import migrate
config = migrate.alembic_config(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[2] == "api":
    migrate.upgrade(sys.argv[1])
else:
    command.upgrade(config, "head")
"""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(120)
def test_processes_that_migrate_at_once(database_url):
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _CHILD, database_url, ("api", "command")[number % 2]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(_PROCESSES)
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
    assert [child.returncode for child in children] == [0] * _PROCESSES, errors
    tables = build_tables()
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        found = contents(connection, tables)
    migrate.downgrade(engine, revision="base")
    with engine.begin() as connection:
        assert found == expected_contents(connection, tables)


def test_whoever_waited_sees_what_the_first_one_did(postgres_url):
    """Also where the host's transactions would keep the snapshot from before the wait."""
    strict = sa.create_engine(postgres_url, poolclass=sa.NullPool, isolation_level="SERIALIZABLE")
    plain = sa.create_engine(postgres_url, poolclass=sa.NullPool)
    done: list[str | None] = []

    def second() -> None:
        migrate.upgrade(strict)
        done.append(migrate.current(strict))

    thread = threading.Thread(target=second, daemon=True)
    with plain.begin() as first:
        migrate.upgrade(first)
        thread.start()
        _wait_for_somebody_to_wait(plain)
    thread.join(30)
    assert done == [migrate.current(plain)]


def _wait_for_somebody_to_wait(engine):
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    deadline = time.monotonic() + 20
    with engine.connect() as connection:
        while not connection.execute(waiting).scalar_one():
            assert time.monotonic() < deadline, "nobody waits"
            time.sleep(0.01)
