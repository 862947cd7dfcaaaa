"""Stores on a real server, with a locker that processes share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from queue_lib import migrate
from tests.clickhouse_server import ClickHouseServer

if TYPE_CHECKING:
    from queue_lib.stores.clickhouse.store import ClickHouseStore
    from tests.clickhouse.child import Child

TTL = 0.4


@pytest.fixture
def url(clickhouse_server: ClickHouseServer, clickhouse_database: str) -> str:
    """The URL of a new database that has the tables, through the native driver."""
    url = clickhouse_server.url(clickhouse_database)
    migrate.upgrade(url)
    return url


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    """The file of the lockers of all processes of the test."""
    return tmp_path / "locks.db"


@pytest.fixture
def open_store(locks: Path) -> Iterator[Callable[..., ClickHouseStore]]:
    """Opens stores that are closed after the test."""
    from queue_lib.lockers.sql import SQLLocker
    from queue_lib.stores.clickhouse.open import open_clickhouse_store

    stores: list[ClickHouseStore] = []
    lockers: list[SQLLocker] = []

    def open_(url: str, **options: Any) -> ClickHouseStore:
        locker = options.pop("locker", None)
        if locker is None:
            locker = SQLLocker(f"sqlite:///{locks}", ttl=TTL)
            lockers.append(locker)
        stores.append(open_clickhouse_store(sa.make_url(url), locker, **options))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()
    for locker in lockers:
        locker.close()


@pytest.fixture
def store(url: str, open_store: Callable[..., ClickHouseStore]) -> ClickHouseStore:
    return open_store(url)


@pytest.fixture
def child(url: str, locks: Path) -> Iterator[Child]:
    """Another process, on the same tables and locks."""
    from tests.clickhouse.child import Child

    with Child(url, locks, TTL) as child:
        yield child
