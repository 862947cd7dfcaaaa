"""What operations cost: statements a batch, parts, mutations."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

if not os.environ.get("CI"):
    pytest.importorskip("clickhouse_sqlalchemy", reason="the extra clickhouse is not installed")

import clickhouse_driver

from queue_lib.locks import ProcessLocker
from queue_lib.options import StartFrom
from queue_lib.stores.base import PurgePolicy, Stats
from queue_lib.stores.clickhouse.database import Database
from queue_lib.testing.clock import ManualClock
from tests.clickhouse.child import GROUP, TOPIC, claim, message


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts statements by kind, from now on."""
    counts: Counter[str] = Counter()
    for name in ("select", "insert", "command"):
        original = getattr(Database, name)

        def count(self: Database, *given: Any, name: str = name, original: Any = original) -> Any:
            counts[name] += 1
            return original(self, *given)

        monkeypatch.setattr(Database, name, count)
    return counts


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows the server read for each statement, from now on: it tells the driver."""
    rows: list[int] = []
    original = clickhouse_driver.Client.execute

    def execute(self: Any, *given: Any, **options: Any) -> Any:
        result = original(self, *given, **options)
        rows.append(self.last_query.progress.rows)
        return result

    monkeypatch.setattr(clickhouse_driver.Client, "execute", execute)
    return rows


@pytest.mark.parametrize("key", ["", "a key of its own"])
def test_statements_of_a_batch(url, open_store, counted, key):
    # On a clock of ours: the store asks for the server's every few seconds.
    store = open_store(url, locker=ProcessLocker(), clock=ManualClock(datetime.now(UTC)))
    store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    store.append([message("first")])
    store.ack(claim(store, 1))
    counted.clear()
    store.append([message(f"m{n}", key and f"{key} {n}") for n in range(640)])
    assert counted == {"select": 1, "insert": 1}  # are the ids known; store
    claims = claim(store, 32)
    counted.clear()
    for _ in range(10):
        store.ack(claims)
        claims = claim(store, 32)
        assert len(claims) == 32
    # claim and ack are an INSERT each, the claim is read back; the log comes 1,000 at a time.
    assert counted == {"insert": 20, "select": 10}


def test_an_empty_claim_is_one_statement(url, open_store, counted):
    store = open_store(url, locker=ProcessLocker(), clock=ManualClock())
    store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    assert claim(store) == []
    counted.clear()
    assert claim(store) == []
    assert counted == {"select": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("finished", "timer"), [(200_000, False), (40_000, True)], ids=["plain", "an old timer"]
)
def test_a_claim_reads_nothing_of_what_is_finished(
    url, open_store, rows_read, finished, timer, clickhouse_server, clickhouse_database
):
    """It begins at the low mark; if a timer keeps that low, the janitor has removed the rest."""
    locker, clock = ProcessLocker(), ManualClock(datetime.now(UTC))
    store = open_store(url, locker=locker, clock=clock)
    store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    if timer:
        store.append([message("timer", due_in=86_400)])
    for start in range(0, finished, 20_000):
        store.append([message(f"m{number}") for number in range(start, start + 20_000)])
    done = 0
    while found := claim(store, 20_000):
        done += len(store.ack(found))
    assert done == finished
    if timer:
        clock.advance(660)
        store.purge(PurgePolicy(timedelta(days=9), timedelta(days=9)), 100)
        # A delete marks rows; they are read until the server's next merge, whenever that is.
        clickhouse_server.execute(f"OPTIMIZE TABLE {clickhouse_database}.queue_live FINAL")
    store.append([message(f"new {number}") for number in range(40)])
    for handle in (store, open_store(url, locker=locker, clock=clock)):
        rows_read.clear()
        found = claim(handle, 10)
        assert len(store.ack(found)) == 10
        assert 10 < sum(rows_read) < finished // 10, rows_read


@pytest.mark.slow
def test_parts_stay_few_and_nothing_is_mutated(
    url, open_store, clickhouse_server, clickhouse_database
):
    """Single publishes, claims and acks for some seconds, as fast as they go."""
    store = open_store(url, locker=ProcessLocker())
    store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    ended = time.monotonic() + 10
    published = Counter[int]()
    errors: list[BaseException] = []

    def publish(thread: int) -> None:
        try:
            while time.monotonic() < ended:
                store.append([message(f"{thread}-{published[thread]}")])
                published[thread] += 1
        except BaseException as error:  # noqa: BLE001 - the test reports it
            errors.append(error)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    done = parts = 0
    while any(thread.is_alive() for thread in threads) or done < published.total():
        done += len(store.ack(claim(store)))
        parts = max(parts, _parts(clickhouse_server, clickhouse_database))
        assert not errors
    for thread in threads:
        thread.join()
    assert done == published.total() > 50
    assert store.stats(TOPIC, GROUP) == Stats()
    assert parts < 60
    assert _count(clickhouse_server, "mutations", clickhouse_database) == 0


def _parts(server: Any, database: str) -> int:
    query = f"SELECT count() FROM system.parts WHERE active AND database = '{database}'"
    return int(server.execute(query))


def _count(server: Any, table: str, database: str) -> int:
    return int(server.execute(f"SELECT count() FROM system.{table} WHERE database = '{database}'"))
