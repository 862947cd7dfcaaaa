"""What only `KeeperMapLocker` has: a table in the Keeper, and two drivers."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from queue_lib import InvalidOptionsError, StoreError, StoreUnavailableError, UnsupportedError
from queue_lib.testing.conformance.case import together
from tests.clickhouse_server import ClickHouseServer

if TYPE_CHECKING:
    from queue_lib.lockers.keeper_map import KeeperMapLocker

AT_ONCE = timedelta(0)
LONG = timedelta(seconds=20)


@pytest.fixture
def kind(clickhouse_server: ClickHouseServer) -> type[KeeperMapLocker]:
    """The class, which needs what the server's fixture skips without."""
    from queue_lib.lockers.keeper_map import KeeperMapLocker

    return KeeperMapLocker


def test_either_driver_and_a_hosts_engine_will_do(kind: type[KeeperMapLocker], clickhouse_url: str):
    engine = sa.create_engine(clickhouse_url)
    with kind(engine, ttl=1) as one, kind(clickhouse_url, ttl=1) as other:
        handle = one.acquire("k\\'\n", AT_ONCE)
        with pytest.raises(StoreUnavailableError, match="still held"):
            other.acquire("k\\'\n", timedelta(seconds=1.5))
        assert handle.is_held()
        handle.release()
        assert other.acquire("k\\'\n", LONG).fence == 2
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT 1")).scalar() == 1
    engine.dispose()


def test_the_table_is_created_once_whoever_comes_first(
    kind: type[KeeperMapLocker], clickhouse_server: ClickHouseServer, clickhouse_database: str
):
    lockers = [kind(clickhouse_server.url(clickhouse_database)) for _ in range(8)]
    together(8, lambda number: lockers[number].acquire(f"k{number}", LONG).release())
    for locker in lockers:
        locker.close()
    tables = clickhouse_server.execute(f"SHOW TABLES FROM {clickhouse_database}")
    assert tables.split() == ["queue_locks"]


def test_databases_share_the_locks_of_one_path(
    kind: type[KeeperMapLocker], clickhouse_server: ClickHouseServer
):
    databases = [clickhouse_server.create_database() for _ in range(3)]
    urls = [clickhouse_server.url(name) for name in databases]
    path = f"/{databases[0]}/shared"
    with (
        kind(urls[0], path=path) as one,
        kind(urls[1], path=path) as other,
        kind(urls[2]) as stranger,
    ):
        one.acquire("k", AT_ONCE)
        with pytest.raises(StoreUnavailableError):
            other.acquire("k", AT_ONCE)
        assert stranger.acquire("k", AT_ONCE).is_held()
    for name in databases:
        clickhouse_server.drop_database(name)


def test_a_hundred_and_fifty_of_the_longest_keys_are_renewed(
    kind: type[KeeperMapLocker], clickhouse_server: ClickHouseServer, clickhouse_database: str
):
    url = clickhouse_server.url(clickhouse_database)
    with kind(url, ttl=6) as locker:
        keys = [f"{number:0>4}".ljust(1000, "\\") for number in range(150)]
        handles = together(10, lambda n: [locker.acquire(key, LONG) for key in keys[n::10]])
        last = handles[-1][-1]
        assert not last.lost.wait(7)
        assert all(handle.is_held() for part in handles for handle in part)


def test_what_it_cannot_be_is_refused(
    kind: type[KeeperMapLocker], clickhouse_server: ClickHouseServer, clickhouse_database: str
):
    url = clickhouse_server.url(clickhouse_database)
    with pytest.raises(UnsupportedError, match="'sqlite'"):
        kind("sqlite:///locks.db")
    with pytest.raises(InvalidOptionsError, match="plain lower-case name"):
        kind(url, table="locks; DROP")
    with pytest.raises(InvalidOptionsError, match="not a database URL"):
        kind("clickhouse+native://me:secret@host:port/app")


@pytest.mark.slow
def test_without_a_keeper_the_server_says_what_is_missing(kind: type[KeeperMapLocker]):
    with ClickHouseServer() as server, kind(server.url()) as locker:
        with pytest.raises(StoreError, match="keeper_map_path_prefix") as caught:
            locker.acquire("k", LONG)
        assert not isinstance(caught.value, StoreUnavailableError)
