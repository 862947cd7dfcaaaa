"""The PostgreSQL store passes everything that every store passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest
import sqlalchemy as sa

from queue_lib.stores.base import Store
from queue_lib.stores.sql.open import open_sql_store
from queue_lib.stores.sql.store import SqlStore
from queue_lib.testing.clock import ManualClock
from queue_lib.testing.conformance import OwnClockConformance, StoreConformance


class TestPostgresStore(StoreConformance):
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"ack_and_claim", "clock", "detailed_stats", "peek", "shared", "transactional", "wake"}
    )
    url: sa.URL

    @pytest.fixture(name="store")
    def given_store(self, clock: ManualClock, new_postgres_url: Callable[[], sa.URL]) -> SqlStore:
        self.url = new_postgres_url()
        return open_sql_store(self.url, clock=clock)

    def reopen(self, store: Store) -> SqlStore:
        return open_sql_store(self.url, clock=self.clock)

    @contextmanager
    def connect(self, store: Store) -> Iterator[sa.Connection]:
        engine = sa.create_engine(self.url)
        with engine.connect() as connection:
            yield connection
        engine.dispose()


class TestPostgresStoreOnItsOwnClock(OwnClockConformance):
    @pytest.fixture(name="store")
    def given_store(self, new_postgres_url: Callable[[], sa.URL]) -> SqlStore:
        return open_sql_store(new_postgres_url())
