"""Empty databases for stores, many a second."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from queue_lib import migrate
from queue_lib.stores.schema import build_tables
from tests.clickhouse_server import ClickHouseServer
from tests.servers import Postgres


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the tables, to be copied."""
    path = tmp_path_factory.mktemp("template") / "queue.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def new_sqlite_url(sqlite_template: Path, tmp_path: Path) -> Callable[[], sa.URL]:
    """Makes a new file with the tables at each call."""

    def make() -> sa.URL:
        path = tmp_path / f"queue-{len(list(tmp_path.glob('*.db')))}.db"
        shutil.copyfile(sqlite_template, path)
        return sa.URL.create("sqlite", database=str(path))

    return make


@pytest.fixture(scope="class")
def new_postgres_url(
    postgres_server: Postgres, _postgres_template: str
) -> Iterator[Callable[[], sa.URL]]:
    """Empties the tables of the test class's own database at each call."""
    name = postgres_server.create_database(_postgres_template)
    url = sa.make_url(postgres_server.url(name))
    # Not TRUNCATE: new files for each table and index take fifty times as long as a few rows do.
    deletes = "; ".join(
        f"delete from {table.name}" for table in build_tables().metadata.tables.values()
    )
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as admin:

        def empty() -> sa.URL:
            admin.execute(deletes.encode())
            return url

        yield empty
    postgres_server.drop_database(name)


@pytest.fixture(scope="class")
def new_clickhouse_url(clickhouse_server: ClickHouseServer) -> Iterator[Callable[[str], sa.URL]]:
    """Empties the tables of the test class's own database at each call; returns its URL."""
    from queue_lib.stores.clickhouse.schema import build_clickhouse_tables, create_statements_v1

    name = clickhouse_server.create_database()
    tables = build_clickhouse_tables(name)
    for statement in create_statements_v1(tables):
        clickhouse_server.execute(statement)

    def empty(driver: str) -> sa.URL:
        for table in ("live", "messages", "fence"):
            clickhouse_server.execute(tables.qualify(f"TRUNCATE TABLE {{q}}{table}"))
        return sa.make_url(clickhouse_server.url(name, driver))

    yield empty
    clickhouse_server.drop_database(name)
