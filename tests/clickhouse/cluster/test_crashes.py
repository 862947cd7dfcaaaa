"""A replica that is killed, and a process that is stopped, at the worst moments."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if not os.environ.get("CI"):
    pytest.importorskip("clickhouse_sqlalchemy", reason="the extra clickhouse is not installed")

from queue_lib.errors import StoreUnavailableError
from queue_lib.options import StartFrom
from queue_lib.stores.base import Stats
from queue_lib.stores.clickhouse.database import Database
from queue_lib.stores.clickhouse.store import ClickHouseStore
from tests.clickhouse.child import GROUP, TOPIC, Child, claim, message
from tests.clickhouse.cluster.steps import NAMES, again, ids
from tests.clickhouse.conftest import TTL
from tests.clickhouse_cluster import ClickHouseCluster

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def test_a_replica_that_was_restarted_comes_in_again(cluster, stores):
    """Its fences are gone; those of the other are not."""
    one, two = stores
    held = claim(one, 1)
    cluster.replicas[1].kill()
    with pytest.raises(StoreUnavailableError):
        two.append([message("new")])
    cluster.start_all()
    two.append([message("new")])
    assert two.ack(held) == [held[0].delivery_id]
    assert ids([*claim(one, 1), *claim(two)]) == ["m1", "m2", "m3", "new"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["publish", "claim", "ack"])
def test_a_replica_killed_in_the_middle_of(cluster, stores, monkeypatch, name, when):
    """Before its write nothing happened; behind it, all of it did, on the other replica too."""
    one, two = stores
    held = claim(one, 1)
    operations: dict[str, Any] = {
        "publish": lambda store: store.append([message("new")]),
        "claim": lambda store: claim(store, 1),
        "ack": lambda store: store.ack(held),
    }
    original = Database.insert

    def insert(self: Database, *given: Any) -> None:
        monkeypatch.setattr(Database, "insert", original)
        if when == "after":
            original(self, *given)
        cluster.replicas[0].kill()
        if when == "before":
            original(self, *given)
        raise StoreUnavailableError("the answer was lost")

    monkeypatch.setattr(Database, "insert", insert)
    with pytest.raises(StoreUnavailableError):
        operations[name](one)
    with pytest.raises(StoreUnavailableError):  # the other does not go on alone
        operations[name](two)
    cluster.start_all()
    again(lambda: operations[name](two))
    expected = {
        "publish": Stats(pending=4, leased=1),
        "claim": Stats(pending=2, leased=2),
        "ack": Stats(pending=3),
    }[name]
    if name == "claim" and when == "after":  # the first one's answer was lost; it runs out
        expected = Stats(pending=1, leased=3)
    assert one.stats(TOPIC, GROUP) == two.stats(TOPIC, GROUP) == expected
    rest = [*claim(two), *claim(one)]
    assert len(ids(rest)) == expected.pending
    assert len(set(ids(rest))) == expected.pending


@pytest.fixture
def pair(
    cluster: ClickHouseCluster, tables: str, open_store: Any, locks: Path
) -> Iterator[tuple[ClickHouseStore, Child]]:
    """A store on one replica, and a process with a store on the other."""
    store: ClickHouseStore = open_store(cluster.url(tables))
    store.ensure_group(TOPIC, GROUP, StartFrom.EARLIEST)
    store.append([message(name) for name in NAMES])
    url = cluster.url(tables, 1).render_as_string(hide_password=False)
    with Child(url, locks, TTL) as child:
        yield store, child


def test_a_claim_stopped_before_its_write_on_another_replica_gets_what_is_left(pair):
    store, child = pair
    assert child.ask("claim", 1) == ["m0"]
    child.ask("stop", "before insert live")
    child.tell("claim")
    child.wait_stopped("before insert live")
    taken = ids(claim(store, 2))
    child.resume()
    assert child.hear_answer() == NAMES[3:]
    assert taken == NAMES[1:3]
    assert store.stats(TOPIC, GROUP) == Stats(leased=4)


def test_an_ack_stopped_before_its_write_on_another_replica_loses(pair):
    store, child = pair
    assert child.ask("claim", 100, 0.5) == NAMES
    child.ask("stop", "before insert live")
    child.tell("ack")
    child.wait_stopped("before insert live")
    taken: list[Any] = []
    while len(taken) < len(NAMES):
        taken += claim(store)
    child.resume()
    assert child.hear_answer() == []
    assert len(store.ack(taken)) == len(NAMES)


def test_a_publish_stopped_before_its_write_on_another_replica_comes_later(pair):
    store, child = pair
    child.ask("publish", ["first"])
    child.ask("stop", "before insert messages")
    child.tell("publish", ["late", "k"])
    child.wait_stopped("before insert messages")
    store.append([message("other", "k")])
    taken = claim(store)
    assert ids(taken) == [*NAMES, "first", "other"]
    child.resume()
    child.hear_answer()
    assert claim(store) == []  # behind its key
    store.ack(taken)
    assert ids(claim(store)) == ["late"]


def test_whoever_stops_before_raising_the_fences_raises_none_of_them(pair, cluster, tables):
    store, child = pair
    raising = "command INSERT INTO FUNCTION clusterAllReplicas"
    child.ask("stop", f"before {raising}")
    child.tell("claim")
    child.wait_stopped(f"before {raising}")
    taken = ids(claim(store, 3))
    fences = [
        replica.execute(f"SELECT * FROM {tables}.queue_fence ORDER BY name")
        for replica in cluster.replicas
    ]
    assert fences[0] == fences[1]
    child.resume()
    assert child.hear() == "refused"
    assert child.hear_answer() == NAMES[3:]
    assert taken == NAMES[:3]
