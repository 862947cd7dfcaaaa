"""The ClickHouse store passes everything that every store passes, on both of its drivers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import pytest
import sqlalchemy as sa

from queue_lib.locks import ProcessLocker
from queue_lib.stores.base import Store
from queue_lib.testing.clock import ManualClock
from queue_lib.testing.conformance import OwnClockConformance, StoreConformance
from queue_lib.testing.machine import check_against_model

if TYPE_CHECKING:
    from queue_lib.stores.clickhouse.store import ClickHouseStore


def open_store(
    url: sa.URL, locker: ProcessLocker, clock: ManualClock | None = None
) -> ClickHouseStore:
    from queue_lib.stores.clickhouse.open import open_clickhouse_store  # its drivers may be missing

    return open_clickhouse_store(url, locker, clock=clock)


class ClickHouseCase(StoreConformance):
    capabilities: ClassVar[frozenset[str]] = frozenset({"clock", "detailed_stats", "shared"})
    driver: ClassVar[str]
    url: sa.URL
    locker: ProcessLocker

    @pytest.fixture(name="store")
    def given_store(
        self, clock: ManualClock, new_clickhouse_url: Callable[[str], sa.URL]
    ) -> ClickHouseStore:
        self.url, self.locker = new_clickhouse_url(self.driver), ProcessLocker()
        return open_store(self.url, self.locker, clock)

    def reopen(self, store: Store) -> ClickHouseStore:
        return open_store(self.url, self.locker, self.clock)


class TestClickHouseStoreNative(ClickHouseCase):
    driver = "native"


class TestClickHouseStoreHttp(ClickHouseCase):
    driver = "http"


class TestClickHouseStoreOnItsOwnClock(OwnClockConformance):
    @pytest.fixture(name="store")
    def given_store(self, new_clickhouse_url: Callable[[str], sa.URL]) -> ClickHouseStore:
        return open_store(new_clickhouse_url("native"), ProcessLocker())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_clickhouse_agrees_with_the_model(new_clickhouse_url: Callable[[str], sa.URL]) -> None:
    check_against_model(
        lambda clock: open_store(new_clickhouse_url("native"), ProcessLocker(), clock)
    )
