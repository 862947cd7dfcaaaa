"""The SQLite store passes everything that every store passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest
import sqlalchemy as sa

from queue_lib.stores.base import Store
from queue_lib.stores.schema import build_tables
from queue_lib.stores.sql.open import open_sql_store
from queue_lib.stores.sql.sqlite import prepare_sqlite_engine
from queue_lib.stores.sql.store import SqlStore
from queue_lib.testing.clock import ManualClock
from queue_lib.testing.conformance import OwnClockConformance, StoreConformance
from queue_lib.testing.conformance.append import AppendConformance
from queue_lib.testing.conformance.claim import ClaimConformance
from queue_lib.testing.conformance.groups import GroupConformance
from queue_lib.testing.conformance.limits import LimitConformance
from queue_lib.testing.conformance.order import OrderConformance


class TestSqliteStore(StoreConformance):
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"ack_and_claim", "clock", "detailed_stats", "peek", "shared", "transactional", "wake"}
    )
    url: sa.URL

    @pytest.fixture(name="store")
    def given_store(self, clock: ManualClock, new_sqlite_url: Callable[[], sa.URL]) -> SqlStore:
        self.url = new_sqlite_url()
        return open_sql_store(self.url, clock=clock)

    def reopen(self, store: Store) -> SqlStore:
        return open_sql_store(self.url, clock=self.clock)

    @contextmanager
    def connect(self, store: Store) -> Iterator[sa.Connection]:
        engine = sa.create_engine(self.url)
        prepare_sqlite_engine(engine)
        with engine.connect() as connection:
            yield connection
        engine.dispose()


class TestSqliteStoreOnItsOwnClock(OwnClockConformance):
    @pytest.fixture(name="store")
    def given_store(self, new_sqlite_url: Callable[[], sa.URL]) -> SqlStore:
        return open_sql_store(new_sqlite_url())


class TestSqliteStoreInMemory(
    AppendConformance, GroupConformance, ClaimConformance, OrderConformance, LimitConformance
):
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"ack_and_claim", "clock", "detailed_stats", "peek"}
    )

    def make_store(self, clock: ManualClock, tmp_path: Path) -> SqlStore:
        store = open_sql_store(sa.make_url("sqlite://"), clock=clock)
        assert isinstance(store.migration_target, sa.Engine)
        build_tables().metadata.create_all(store.migration_target)
        return store
