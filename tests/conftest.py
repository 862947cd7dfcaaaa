"""Fixtures for every test: databases, and the check that no thread of ours outlives a test."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from queue_lib import migrate
from tests.servers import Postgres, PostgresServer, ServerUnavailableError

pytest_plugins = ["queue_lib.testing.plugin", "tests.clickhouse_server"]

settings.register_profile("default", max_examples=25, deadline=None)
settings.register_profile("ci", max_examples=100, deadline=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

_THREAD_SECONDS = 5.0


@pytest.fixture(autouse=True)
def _no_thread_outlives_its_test() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + _THREAD_SECONDS
    ours = [
        thread for thread in set(threading.enumerate()) - before if thread.name.startswith("queue-")
    ]
    for thread in ours:
        thread.join(max(deadline - time.monotonic(), 0))
    alive = [thread.name for thread in ours if thread.is_alive()]
    assert not alive, f"threads outlived the test: {alive}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """The server named by QUEUE_LIB_TEST_POSTGRES_URL, else one of our own for this session.

    Under xdist each worker has its own: half a second each, and nothing to share or to count.
    """
    if given := os.environ.get("QUEUE_LIB_TEST_POSTGRES_URL"):
        yield Postgres(given)
        return
    with _own_server() as server:
        yield server


@pytest.fixture
def postgres_own_server() -> Iterator[PostgresServer]:
    """A server for this test alone: to be stopped, killed and started again."""
    with _own_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: Postgres) -> Iterator[str]:
    """The URL of a new, empty database."""
    yield from _database(postgres_server)


@pytest.fixture
def postgres_migrated_url(postgres_server: Postgres, _postgres_template: str) -> Iterator[str]:
    """The URL of a new database that has the tables, without a row."""
    yield from _database(postgres_server, _postgres_template)


@pytest.fixture(scope="session")
def _postgres_template(postgres_server: Postgres) -> Iterator[str]:
    name = postgres_server.create_database()
    migrate.upgrade(postgres_server.url(name))
    yield name
    postgres_server.drop_database(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a database file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'queue.db'}"


@pytest.fixture
def sqlite_migrated_url(_sqlite_template: Path, tmp_path: Path) -> str:
    """The URL of a new database file that has the tables, without a row."""
    path = tmp_path / "queue.db"
    shutil.copyfile(_sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


def _own_server() -> PostgresServer:
    try:
        return PostgresServer()
    except ServerUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(f"no PostgreSQL: {error}")
        pytest.skip(f"no PostgreSQL: {error}")


def _database(server: Postgres, template: str = "template0") -> Iterator[str]:
    name = server.create_database(template)
    yield server.url(name)
    server.drop_database(name)
