"""Two replicas, and a store on each."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from queue_lib.locks import ProcessLocker
from queue_lib.options import StartFrom
from tests.clickhouse.cluster.steps import NAMES
from tests.clickhouse_cluster import ClickHouseCluster
from tests.servers import ServerUnavailableError

if TYPE_CHECKING:
    from queue_lib.stores.clickhouse.store import ClickHouseStore


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep these tests on one worker of xdist: a pair of servers is enough."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.xdist_group("cluster"))


@pytest.fixture(scope="session")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseCluster]:
    """Two replicas for the session."""
    try:
        if importlib.util.find_spec("clickhouse_sqlalchemy") is None:
            raise ServerUnavailableError("not installed: clickhouse_sqlalchemy")
        cluster = ClickHouseCluster(tmp_path_factory.mktemp("cluster"))
    except ServerUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(f"no ClickHouse cluster: {error}")
        pytest.skip(f"no ClickHouse cluster: {error}")
    with cluster:
        yield cluster


@pytest.fixture
def cluster(_cluster: ClickHouseCluster) -> ClickHouseCluster:
    """Two replicas that run, whatever the test before did to them."""
    _cluster.start_all()
    return _cluster


@pytest.fixture
def database(cluster: ClickHouseCluster) -> Iterator[str]:
    """The name of a new, empty database on both."""
    name = cluster.create_database()
    yield name
    cluster.drop_database(name)


@pytest.fixture
def tables(cluster: ClickHouseCluster, database: str) -> str:
    """The name of one that has the tables."""
    cluster.migrate(database)
    return database


@pytest.fixture
def stores(
    cluster: ClickHouseCluster, tables: str, open_store: Any
) -> tuple[ClickHouseStore, ClickHouseStore]:
    """A store on each replica, and four messages for the group."""
    from tests.clickhouse.child import GROUP, TOPIC, message  # it needs the driver

    locker = ProcessLocker()
    one, two = (open_store(cluster.url(tables, replica), locker=locker) for replica in (0, 1))
    one.ensure_group(TOPIC, GROUP, StartFrom.EARLIEST)
    two.append([message(name) for name in NAMES])
    return one, two
