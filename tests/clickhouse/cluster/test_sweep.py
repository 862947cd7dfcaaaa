"""The janitor removes what has ended from every replica."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest

if not os.environ.get("CI"):
    pytest.importorskip("clickhouse_sqlalchemy", reason="the extra clickhouse is not installed")

from queue_lib.stores.base import PurgePolicy, Stats
from tests.clickhouse.child import GROUP, TOPIC, claim, message
from tests.clickhouse.cluster.steps import NAMES, ids

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def test_the_rows_of_what_ended_go_on_every_replica(cluster, stores, tables, monkeypatch):
    monkeypatch.setattr("queue_lib.stores.clickhouse.upkeep._SWEEP_LEAST", 1)
    monkeypatch.setattr("queue_lib.stores.clickhouse.upkeep._SWEEP_AGE", 0)
    one, two = stores
    one.append([message("k1", "k"), message("k2", "k")])
    assert ids(claim(one, 2)) == NAMES[:2]
    taken = claim(two)
    assert ids(taken) == [*NAMES[2:], "k1"]
    assert len(one.ack(taken)) == 3
    two.purge(PurgePolicy(timedelta(days=1), timedelta(days=1)), 100)
    query = f"SELECT count(), countIf(del = 1) FROM {tables}.queue_live WHERE kind != 5"
    # Two leases, and k2 in its lane and ready.
    assert [replica.execute(query) for replica in cluster.replicas] == [[(4, 0)]] * 2
    assert one.stats(TOPIC, GROUP) == two.stats(TOPIC, GROUP) == Stats(pending=1, leased=2)
    assert ids(claim(two)) == ["k2"]
