"""The ClickHouse store passes everything that every store passes, on both of its drivers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import sqlalchemy as sa

from queue_lib.locks import ProcessLocker
from queue_lib.stores.base import GroupStats, Stats, Store
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


class Alternating:
    """One store through two handles in turn: each finds that the other was there, and begins anew.

    A single one remembers, so what it wrote would hardly ever be read again.
    """

    def __init__(self, handles: list[ClickHouseStore]) -> None:
        self._handles = handles
        self._turn = itertools.cycle(handles)

    def __getattr__(self, name: str) -> Any:
        return getattr(next(self._turn), name)

    def group_stats(self, topic: str, group: str) -> GroupStats:
        return self._handles[0].group_stats(topic, group)

    def stats(self, topic: str, group: str) -> Stats:
        return self._handles[0].stats(topic, group)

    def close(self) -> None:
        for handle in self._handles:
            handle.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("handles", [1, 2])
def test_clickhouse_agrees_with_the_model(
    new_clickhouse_url: Callable[[str], sa.URL], handles: int
) -> None:
    def make(clock: ManualClock) -> Store:
        url, locker = new_clickhouse_url("native"), ProcessLocker()
        opened = [open_store(url, locker, clock) for _ in range(handles)]
        return Alternating(opened) if handles > 1 else opened[0]

    check_against_model(make, max_examples=10, stateful_step_count=25)
