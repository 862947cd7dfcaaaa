"""What every store passes, through two handles in turn: one on each of two replicas."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa

if not os.environ.get("CI"):
    pytest.importorskip("clickhouse_sqlalchemy", reason="the extra clickhouse is not installed")

from queue_lib.locks import ProcessLocker
from queue_lib.stores.clickhouse.open import open_clickhouse_store
from queue_lib.testing.clock import ManualClock
from queue_lib.testing.conformance.append import AppendConformance
from queue_lib.testing.conformance.case import StoreCase
from queue_lib.testing.conformance.claim import ClaimConformance
from queue_lib.testing.conformance.fencing import FencingConformance
from queue_lib.testing.conformance.order import OrderConformance
from queue_lib.testing.conformance.purge import PurgeConformance
from queue_lib.testing.conformance.settle import SettleConformance
from tests.clickhouse_cluster import ClickHouseCluster
from tests.stores.test_clickhouse import Alternating

pytestmark = pytest.mark.slow

# Each operation finds that the other handle was there, and begins anew. All of them take minutes:
# by default there are only those that say most about replicas.
EVERYTHING = bool(os.environ.get("QUEUE_LIB_TEST_CLUSTER_FULLY"))
LONG = (
    "test_lanes_hold_under_concurrent_consumers",
    "test_nothing_live_goes_however_old",
    "test_publishers_of_equal_ids_at_one_moment_store_each_once",
    "test_who_waits_stays_behind_a_head_that_is",
)


@pytest.fixture(scope="module")
def empty_urls(_cluster: ClickHouseCluster) -> Iterator[Callable[[], list[sa.URL]]]:
    """Empties the tables of a database; returns its URL on each replica."""
    _cluster.start_all()
    name = _cluster.create_database()
    _cluster.migrate(name)

    def empty() -> list[sa.URL]:
        for table in ("live", "messages"):
            _cluster.replicas[0].execute(
                f"TRUNCATE TABLE {name}.queue_{table} SETTINGS alter_sync = 2"
            )
        _cluster.everywhere(f"TRUNCATE TABLE {name}.queue_fence")
        return [_cluster.url(name, replica) for replica in (0, 1)]

    yield empty
    _cluster.drop_database(name)


class TwoReplicas(StoreCase):
    capabilities: ClassVar[frozenset[str]] = frozenset({"clock", "detailed_stats"})

    @pytest.fixture(name="store")
    def given_store(
        self, clock: ManualClock, empty_urls: Callable[[], list[sa.URL]]
    ) -> Iterator[Any]:
        locker = ProcessLocker()
        store = Alternating(
            [open_clickhouse_store(url, locker, clock=clock) for url in empty_urls()]
        )
        yield store
        store.close()


class TestTwoReplicas(TwoReplicas, AppendConformance, OrderConformance, PurgeConformance):
    pass


if EVERYTHING:

    class TestTwoReplicasFully(
        TwoReplicas, ClaimConformance, SettleConformance, FencingConformance
    ):
        pass

else:
    for name in LONG:
        setattr(TestTwoReplicas, name, None)
