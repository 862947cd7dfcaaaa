"""L. ClickHouse: what merges do, and what is not due, must make no difference."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

if not os.environ.get("CI"):
    pytest.importorskip("clickhouse_sqlalchemy", reason="the extra clickhouse is not installed")

import clickhouse_driver

from queue_lib import Claimed, ClaimRequest, Message, ProcessLocker, StartFrom, Stats, Store
from queue_lib.stores.clickhouse.open import open_clickhouse_store
from tests.clickhouse_server import ClickHouseServer
from tests.engine.harness import GROUP, TOPIC

MANY = 20_000
LEASE = timedelta(minutes=1)


def message(id: str, key: str = "", due_in: timedelta | None = None) -> Message:
    now = datetime.now(UTC)
    due = None if due_in is None else now + due_in
    return Message(TOPIC, b"x", key, id, deliver_at=due, published_at=now)


def claim(store: Store, limit: int = 1, group: str = GROUP) -> list[Claimed]:
    return store.claim(ClaimRequest(TOPIC, group, "test", limit, LEASE))


def put_off(held: Claimed) -> Callable[[Store], bool]:
    return lambda store: store.retry(held, timedelta(0), "why")


# -- merges --------------------------------------------------------------------------------------


@pytest.mark.parametrize("merges", ["never", "after each step"])
def test_a_state_is_the_newest_one_whatever_was_merged(
    clickhouse_server: ClickHouseServer, clickhouse_migrated_url: str, merges: str
) -> None:
    """P94. A delivery that changes its state many times within a second, seen from two handles."""
    url = sa.make_url(clickhouse_migrated_url)
    tables = [f"{url.database}.queue_{name}" for name in ("live", "messages")]
    locker = ProcessLocker()
    stores = [open_clickhouse_store(url, locker) for _ in range(2)]
    turns = 0

    def step(work: Callable[[Store], Any], expected: Stats) -> Any:
        """Do something through one handle; both of them and a new one see what became of it."""
        nonlocal turns
        turns += 1
        answer = work(stores[turns % 2])
        if merges == "after each step":
            for table in tables:
                clickhouse_server.execute(f"OPTIMIZE TABLE {table} FINAL")
        fresh = open_clickhouse_store(url, locker)
        assert [store.stats(TOPIC, GROUP) for store in (*stores, fresh)] == [expected] * 3
        fresh.close()
        return answer

    if merges == "never":
        for table in tables:
            clickhouse_server.execute(f"SYSTEM STOP MERGES {table}")
    stores[0].ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    step(lambda store: store.append([message("a", "k"), message("b", "k")]), Stats(pending=2))
    for attempt in range(1, 4):
        (held,) = step(claim, Stats(pending=1, leased=1))
        assert (held.message.id, held.attempt) == ("a", attempt)
        step(put_off(held), Stats(pending=2))
        assert stores[0].ack([held]) == []
    (held,) = step(claim, Stats(pending=1, leased=1))
    step(lambda store: store.release([held]), Stats(pending=2))
    (held,) = step(claim, Stats(pending=1, leased=1))
    assert (held.message.id, held.attempt) == ("a", 4)
    assert step(lambda store: store.ack([held]), Stats(pending=1)) == [held.delivery_id]
    (held,) = step(claim, Stats(leased=1))
    assert (held.message.id, held.attempt) == ("b", 1)
    assert step(lambda store: store.kill(held, "why"), Stats(dead=1)) is True
    assert step(claim, Stats(dead=1)) == []
    for store in stores:
        store.close()


# -- what a claim reads --------------------------------------------------------------------------


def publish_many(store: Store, **fields: Any) -> None:
    store.append([message(f"m{number}", **fields) for number in range(MANY)])


def a_backlog(store: Store) -> None:
    publish_many(store)
    assert len(claim(store, 1)) == 1  # the first one of a process looks for where to begin


def a_schedule(store: Store) -> None:
    publish_many(store, due_in=timedelta(days=1))
    assert claim(store, MANY) == []


def a_group_that_nobody_runs(store: Store) -> None:
    store.ensure_group(TOPIC, "idle", StartFrom.LATEST)
    publish_many(store)
    while claims := claim(store, MANY // 4):
        store.ack(claims)


def a_key_that_is_blocked(store: Store) -> None:
    publish_many(store, key="k")
    (head,) = claim(store)
    assert store.retry(head, timedelta(hours=1), "why")
    assert claim(store, MANY) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "burden", [a_backlog, a_schedule, a_group_that_nobody_runs, a_key_that_is_blocked]
)
def test_a_claim_reads_little_beside(
    clickhouse_migrated_url: str,
    monkeypatch: pytest.MonkeyPatch,
    burden: Callable[[Store], None],
) -> None:
    """P23, P32, P33, P34. Twenty thousand rows that it may not take, or need not take yet."""
    store = open_clickhouse_store(sa.make_url(clickhouse_migrated_url), ProcessLocker())
    store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    burden(store)
    store.append([message(f"new {number}", f"key {number}") for number in range(40)])
    read = 0
    execute = clickhouse_driver.Client.execute

    def counted(self: Any, *given: Any, **options: Any) -> Any:
        nonlocal read
        result = execute(self, *given, **options)
        read += self.last_query.progress.rows
        return result

    store.ack(claim(store, 4))
    monkeypatch.setattr(clickhouse_driver.Client, "execute", counted)
    for _ in range(3):
        claims = claim(store, 4)
        assert len(store.ack(claims)) == 4
    assert 10 < read < MANY / 4
    store.close()
