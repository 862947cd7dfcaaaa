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
def _postgres_class_url(postgres_server: Postgres, _postgres_template: str) -> Iterator[sa.URL]:
    name = postgres_server.create_database(_postgres_template)
    yield sa.make_url(postgres_server.url(name))
    postgres_server.drop_database(name)


@pytest.fixture
def new_postgres_url(_postgres_class_url: sa.URL) -> Iterator[Callable[[], sa.URL]]:
    """Empties the tables of the test class's database at each call: a tenth of a new database."""
    names = ", ".join(table.name for table in build_tables().metadata.sorted_tables)
    plain = _postgres_class_url.set(drivername="postgresql")
    with psycopg.connect(plain.render_as_string(hide_password=False), autocommit=True) as admin:

        def empty() -> sa.URL:
            admin.execute(f"truncate {names} restart identity".encode())
            return _postgres_class_url

        yield empty
