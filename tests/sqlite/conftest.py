from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from queue_lib.stores.sql.sqlite import SqliteDatabase
from tests.sqlite.support import TABLES, Queue


@pytest.fixture
def url(tmp_path: Path) -> sa.URL:
    """A file with the tables, in WAL mode."""
    url = sa.URL.create("sqlite", database=str(tmp_path / "queue.db"))
    database = SqliteDatabase(url, TABLES)
    TABLES.metadata.create_all(database.engine)
    database.close()
    return url


@pytest.fixture
def database(url: sa.URL) -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(url, TABLES)
    yield database
    database.close()


@pytest.fixture
def queue(database: SqliteDatabase) -> Queue:
    return Queue(database)
