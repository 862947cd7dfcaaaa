"""Two processes on one group: what one publishes or puts off, the other finds where it belongs."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

if not os.environ.get("CI"):
    pytest.importorskip("clickhouse_sqlalchemy", reason="the extra clickhouse is not installed")

from queue_lib.options import StartFrom
from queue_lib.stores.base import ClaimRequest, Stats
from tests.clickhouse.child import GROUP, TOPIC, Child, claim, message

if TYPE_CHECKING:
    from queue_lib.stores.clickhouse.store import ClickHouseStore

pytestmark = [pytest.mark.slow, pytest.mark.processes]

SOON = 0.5
PATIENCE = 20.0


@pytest.fixture(autouse=True)
def _group(store: ClickHouseStore) -> None:
    store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)


def ids(claims: list[Any]) -> list[str]:
    return [found.message.id for found in claims]


def await_one(store: ClickHouseStore) -> Any:
    """Claim one when it says that one is due."""
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        batch = store.claim(ClaimRequest(TOPIC, GROUP, "test", 1, timedelta(seconds=60)))
        if batch:
            return batch[0]
        assert batch.next_due is not None, "it knows of nothing that will be due"
        assert batch.next_due.total_seconds() < PATIENCE
        time.sleep(batch.next_due.total_seconds())
    raise AssertionError("nothing was ever due")


@pytest.mark.parametrize("backlog", [20, 3000], ids=["all in memory", "more than in memory"])
def test_a_priority_of_another_process_comes_with_the_second_claim(
    store: ClickHouseStore, child: Child, backlog: int
):
    names = [f"m{number:04}" for number in range(backlog)]
    store.append([message(name) for name in names])
    assert ids(claim(store, 1)) == names[:1]
    child.ask("publish", ["urgent", "", -1], ["late", "", 1], ["plain"])
    got = [*ids(claim(store, 1)), *ids(claim(store, 1)), *ids(claim(store, 2))]
    assert "urgent" in got[:2]
    assert [name for name in got if name != "urgent"] == names[1:4]
    rest: list[str] = []
    while found := claim(store, 1000):
        rest += ids(found)
    assert rest == [*names[4:], "plain", "late"]


def test_a_retry_of_another_process_is_due_here_when_it_is_due_there(
    store: ClickHouseStore, child: Child
):
    """Though this one knows a timer already, and knew of no other."""
    store.append([message("far", due_in=60), message("a"), message("b")])
    (a,) = claim(store, 1)
    assert child.ask("claim", 1) == ["b"]
    began = time.monotonic()
    assert child.ask("retry", SOON) == [True]
    assert store.ack([a]) == [a.delivery_id]
    again = await_one(store)
    assert time.monotonic() - began >= SOON
    assert (again.message.id, again.attempt, again.last_error) == ("b", 2, "why")


def test_a_schedule_of_another_process_is_kept_here(store: ClickHouseStore, child: Child):
    store.append([message("far", due_in=60), message("first")])
    assert ids(claim(store, 1)) == ["first"]
    began = time.monotonic()
    child.ask("publish", ["later", "", 0, SOON], ["now"])
    assert ids(claim(store)) == ["now"]
    later = await_one(store)
    assert time.monotonic() - began >= SOON
    assert later.message.id == "later"


def test_a_key_that_is_put_off_there_waits_here(store: ClickHouseStore, child: Child):
    began = time.monotonic()
    child.ask("publish", ["k1", "k", 0, SOON])
    store.append([message("k2", "k"), message("other")])
    assert ids(claim(store)) == ["other"]
    for name in ("k1", "k2"):
        found = await_one(store)
        assert found.message.id == name
        assert time.monotonic() - began >= SOON
        assert claim(store) == []  # the rest of its lane waits
        assert store.ack([found]) == [found.delivery_id]
    assert store.stats(TOPIC, GROUP) == Stats(leased=1)


def test_each_is_done_once_and_in_its_order_whoever_publishes_and_claims(
    store: ClickHouseStore, child: Child
):
    """Both publish urgent, scheduled and keyed messages, and both claim, in turns."""
    done: list[str] = []
    for round_ in range(6):
        batch: list[tuple[Any, ...]] = [
            (f"{round_} urgent", "", -1), (f"{round_} timed", "", 0, 0.05),
            (f"{round_} key", "k"), (f"{round_} last", "", 1),
        ]  # fmt: skip
        if round_ % 2:
            store.append([message(*fields) for fields in batch])
        else:
            child.ask("publish", *batch)
        child.ask("claim", 2)
        found = claim(store, 2)
        done += child.ask("ack")
        done += ids(found)
        assert len(store.ack(found)) == len(found)
    while store.stats(TOPIC, GROUP) != Stats():
        found = [await_one(store), *claim(store)]
        done += ids(found)
        assert len(store.ack(found)) == len(found)
    assert sorted(done) == sorted(
        f"{round_} {kind}" for round_ in range(6) for kind in ("urgent", "timed", "key", "last")
    )
    for kind in ("key", "urgent", "last"):
        assert [name for name in done if name.endswith(kind)] == [f"{n} {kind}" for n in range(6)]
