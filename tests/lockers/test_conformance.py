"""Every locker passes the suite that is shipped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from queue_lib import DistributedLocker, ProcessLocker
from queue_lib.lockers.redis import RedisLocker
from queue_lib.lockers.sql import SQLLocker
from queue_lib.testing.conformance_lockers import LockerConformance
from tests.clickhouse_server import ClickHouseServer
from tests.lockers.conftest import RedisServer

_SHARED = frozenset({"processes"})


class TestProcessLocker(LockerConformance):
    @pytest.fixture(name="new_locker")
    def given_new_locker(self) -> Callable[..., DistributedLocker]:
        return ProcessLocker


class TestSqlite(LockerConformance):
    capabilities = _SHARED

    @pytest.fixture(name="new_locker")
    def given_new_locker(self, sqlite_url: str) -> Callable[..., DistributedLocker]:
        return partial(SQLLocker, sqlite_url)


class TestPostgres(LockerConformance):
    capabilities = _SHARED

    @pytest.fixture(name="new_locker")
    def given_new_locker(self, postgres_url: str) -> Callable[..., DistributedLocker]:
        return partial(SQLLocker, postgres_url)


class TestRedis(LockerConformance):
    capabilities = _SHARED

    @pytest.fixture(name="new_locker")
    def given_new_locker(
        self, redis_server: RedisServer, redis_prefix: str
    ) -> Callable[..., DistributedLocker]:
        return partial(RedisLocker, redis_server.url(), prefix=redis_prefix)


class TestKeeperMap(LockerConformance):
    capabilities = _SHARED

    @pytest.fixture(name="new_locker")
    def given_new_locker(
        self, clickhouse_server: ClickHouseServer, clickhouse_database: str
    ) -> Callable[..., DistributedLocker]:
        from queue_lib.lockers.keeper_map import KeeperMapLocker  # what the fixture skips without

        return partial(KeeperMapLocker, clickhouse_server.url(clickhouse_database))
