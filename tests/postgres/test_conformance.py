"""The PostgreSQL store passes what every store passes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, ClassVar

import pytest

from queue_lib.stores.base import Store
from queue_lib.stores.sql.store import SqlStore
from queue_lib.testing.clock import ManualClock
from queue_lib.testing.conformance import StoreConformance
from tests.postgres.lab import Lab


class TestPostgresStore(StoreConformance):
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"clock", "detailed_stats", "shared", "transactional", "wake"}
    )

    lab: Lab

    @pytest.fixture(name="store")
    def given_store(self, clock: ManualClock, lab: Lab) -> SqlStore:
        self.lab = lab
        return lab.store(clock=clock)

    def reopen(self, store: Store) -> SqlStore:
        return self.lab.store(clock=self.clock)

    def connect(self, store: Store) -> AbstractContextManager[Any]:
        return self.lab.host.connect()
