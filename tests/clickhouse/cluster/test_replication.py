"""Whichever replica takes a statement, it is one queue; also while one lags."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

if not os.environ.get("CI"):
    pytest.importorskip("clickhouse_sqlalchemy", reason="the extra clickhouse is not installed")

from queue_lib.errors import StoreUnavailableError
from queue_lib.options import StartFrom
from queue_lib.stores.base import ClaimRequest, PurgePolicy, Stats
from queue_lib.stores.clickhouse import cluster as cluster_module
from queue_lib.stores.clickhouse.database import Database
from queue_lib.stores.clickhouse.schema import MESSAGE_COLUMNS
from tests.clickhouse.child import GROUP, TOPIC, claim, message
from tests.clickhouse.cluster.steps import NAMES, again, ids

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def test_it_is_one_queue_whichever_replica_is_asked(stores):
    one, two = stores
    first, second = claim(one, 1), claim(two, 1)
    assert ids(first) + ids(second) == NAMES[:2]
    assert two.stats(TOPIC, GROUP) == Stats(pending=2, leased=2)
    assert len(one.ack(second)) == 1
    two.release(first)
    one.append([message("m3"), message("m4")])  # one of them is there already
    rest = claim(two)
    assert ids(rest) == ["m0", "m2", "m3", "m4"]
    assert len(one.ack(rest)) == 4
    assert two.stats(TOPIC, GROUP) == one.stats(TOPIC, GROUP) == Stats()


def test_equal_blocks_all_land(cluster, stores, tables):
    table = f"{tables}.queue_messages"
    row = (TOPIC, 1 << 60, "same", "", 0, 0, 0, 0, 0, "", "u")
    insert = f"INSERT INTO {table} SELECT {', '.join(map(repr, row))}"

    def count() -> list[Any]:
        query = f"SELECT count() FROM {table} WHERE id = 'same'"
        return [replica.execute(query)[0][0] for replica in cluster.replicas]

    database = Database(cluster.url(tables))
    careless = Database(cluster.url(tables).set(query={}))
    try:
        for _ in range(2):
            database.insert(table, MESSAGE_COLUMNS, [row])
            database.command(insert)
        assert count() == [4, 4]
        for _ in range(2):
            careless.insert(table, MESSAGE_COLUMNS, [row])
        assert count()[0] == 5  # one of them was swallowed
    finally:
        database.close()
        careless.close()


def test_equal_operations_in_a_row_all_count(stores):
    one, _ = stores
    one.ack(claim(one))
    for _ in range(3):
        one.append([message("again")])
        (found,) = claim(one)
        assert one.ack([found]) == [found.delivery_id]
        one.purge(PurgePolicy(timedelta(0), timedelta(0)), 100)  # its id is free again


def test_groups_do_not_get_in_each_others_way(stores, caplog):
    """They write to one table, each under a lock of its own."""
    caplog.set_level(logging.DEBUG, "queue_lib.clickhouse")
    names = [f"g{number}" for number in range(4)]
    for name in names:
        stores[0].ensure_group(TOPIC, name, StartFrom.EARLIEST)

    def consume(number: int) -> list[str]:
        seen: list[str] = []
        while len(seen) < len(NAMES):
            store = stores[(number + len(seen)) % 2]
            request = ClaimRequest(TOPIC, names[number], "test", 1, timedelta(seconds=30))
            found = store.claim(request)
            assert len(store.ack(found)) == 1
            seen += ids(found)
        return seen

    with ThreadPoolExecutor(len(names)) as pool:
        assert list(pool.map(consume, range(len(names)))) == [NAMES] * len(names)
    assert "Quorum" not in caplog.text


def test_a_message_that_a_replica_lacks_is_not_read_on_the_other(
    cluster, stores, tables, monkeypatch
):
    monkeypatch.setattr(cluster_module, "_PATIENCE_MS", 500)
    one, two = stores
    table = f"{tables}.queue_messages"
    cluster.replicas[1].execute(f"SYSTEM STOP FETCHES {table}")
    try:
        with pytest.raises(StoreUnavailableError):
            one.append([message("late")])
        query = f"SELECT count() FROM {table} WHERE id = 'late'"
        assert [replica.execute(query) for replica in cluster.replicas] == [[(1,)], [(0,)]]
        assert ids(claim(one)) == NAMES
        assert claim(one) == claim(two) == []
    finally:
        cluster.replicas[1].execute(f"SYSTEM START FETCHES {table}")
    again(lambda: two.append([message("late")]))
    assert ids([*claim(one), *claim(two)]) == ["late"]


@pytest.mark.parametrize("how", ["STOP FETCHES", "STOP REPLICATION QUEUES"])
def test_nobody_goes_on_while_a_replica_lacks_something(cluster, stores, monkeypatch, how):
    monkeypatch.setattr(cluster_module, "_PATIENCE_MS", 500)
    one, two = stores
    held = claim(one, 1)
    cluster.replicas[1].execute(f"SYSTEM {how}")
    try:
        for operate in (
            lambda: one.append([message("late")]),
            lambda: one.ack(held),
            lambda: claim(one, 1),
        ):
            with pytest.raises(StoreUnavailableError):
                operate()
        for store in stores:  # nobody gets anything, nor does anything come after it
            with pytest.raises(StoreUnavailableError):
                claim(store, 1)
            with pytest.raises(StoreUnavailableError):
                store.append([message("later")])
    finally:
        cluster.replicas[1].execute(f"SYSTEM {how.replace('STOP', 'START')}")
    again(lambda: two.append([message("late")]))
    again(lambda: one.append([message("later")]))
    again(lambda: one.ack(held))  # whether or not it was
    found = [*again(lambda: claim(two)), *claim(one)]
    assert ids(found) == ["m1", "m2", "m3", "late", "later"]
    assert len(one.ack(found)) == 5
    assert two.stats(TOPIC, GROUP) == Stats()
