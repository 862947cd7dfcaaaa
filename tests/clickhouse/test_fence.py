"""A process that is stopped past the end of its lock, at the worst moments, breaks nothing.

Each test says where the child stops; the test's own process comes in meanwhile. Nothing depends
on clocks but that the lock's lease ends while the child is stopped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

if not os.environ.get("CI"):
    pytest.importorskip("clickhouse_sqlalchemy", reason="the extra clickhouse is not installed")

from queue_lib.options import StartFrom
from queue_lib.stores.base import PurgePolicy, Stats
from queue_lib.stores.clickhouse.database import Database
from queue_lib.stores.clickhouse.store import ClickHouseStore
from queue_lib.testing.clock import ManualClock
from tests.clickhouse.child import GROUP, TOPIC, Child, claim, message
from tests.clickhouse_server import ClickHouseServer

pytestmark = [pytest.mark.slow, pytest.mark.processes]

KEEP_ALL = PurgePolicy(timedelta(days=9), timedelta(days=9))
NAMES = [f"m{number}" for number in range(6)]


@pytest.fixture(autouse=True)
def _backlog(store: ClickHouseStore) -> None:
    store.ensure_group(TOPIC, GROUP, StartFrom.EARLIEST)
    store.append([message(name) for name in NAMES])


def ids(claims: list[Any]) -> list[str]:
    return [found.message.id for found in claims]


def during_the_insert(monkeypatch: pytest.MonkeyPatch, work: Any) -> None:
    """Run `work` when this process has read its candidates, and is about to write its claim."""
    original = Database.insert

    def insert(self: Database, table: str, *rest: Any) -> None:
        if table.endswith("_live"):
            monkeypatch.setattr(Database, "insert", original)
            work()
        original(self, table, *rest)

    monkeypatch.setattr(Database, "insert", insert)


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_a_claim_stopped_before_its_write_gets_only_what_is_left(store, child, warm):
    if warm:
        assert child.ask("claim", 1) == ["m0"]
        assert child.ask("ack") == ["m0"]
    child.ask("stop", "before insert live")
    child.tell("claim")
    child.wait_stopped("before insert live")
    taken = ids(claim(store, 4))
    child.resume()
    left = child.hear_answer()
    assert taken == NAMES[warm : warm + 4]
    assert left == NAMES[warm + 4 :]
    assert store.stats(TOPIC, GROUP) == Stats(leased=6 - warm)


def test_a_claim_that_wakes_between_anothers_read_and_write_is_refused(store, child, monkeypatch):
    child.ask("stop", "before insert live")
    child.tell("claim")
    child.wait_stopped("before insert live")

    def wake() -> None:
        child.resume()
        assert child.hear() == "refused"

    during_the_insert(monkeypatch, wake)
    taken = ids(claim(store))
    assert taken == NAMES
    assert child.hear_answer() == []
    assert store.stats(TOPIC, GROUP) == Stats(leased=6)


def test_a_claim_stopped_behind_its_write_still_gets_it(store, child):
    child.ask("stop", "after insert live")
    child.tell("claim", 4)
    child.wait_stopped("after insert live")
    assert ids(claim(store)) == NAMES[4:]  # the rest is leased already, to the one who stopped
    child.resume()
    assert child.hear_answer() == NAMES[:4]
    assert child.ask("ack") == NAMES[:4]


def test_a_claim_stopped_behind_its_write_past_its_leases_does_not_get_it(store, child):
    child.ask("stop", "after insert live")
    child.tell("claim", 100, 0.3)
    child.wait_stopped("after insert live")
    taken: list[Any] = []
    while len(taken) < len(NAMES):
        taken += claim(store)
    child.resume()
    assert child.hear_answer() == []
    assert [(found.message.id, found.attempt) for found in taken] == [(name, 2) for name in NAMES]


def test_whoever_stops_before_raising_the_fence_does_not_lower_it(store, child, monkeypatch):
    child.ask("stop", "before command fence")
    child.tell("claim")
    child.wait_stopped("before command fence")

    def wake() -> None:
        child.resume()
        assert child.hear() == "refused"

    during_the_insert(monkeypatch, wake)
    assert ids(claim(store)) == NAMES
    assert child.hear_answer() == []


@pytest.mark.parametrize("taken_over", [False, True], ids=["claimed again", "acked"])
def test_a_settle_after_anothers_claim_loses(store, child, taken_over):
    assert child.ask("claim", 100, 0.5) == NAMES
    child.ask("stop", "before insert live")
    child.tell("ack")
    child.wait_stopped("before insert live")
    taken: list[Any] = []
    while len(taken) < len(NAMES):
        taken += claim(store)
    if taken_over:
        assert len(store.ack(taken)) == 6
    child.resume()
    assert child.hear_answer() == []
    assert store.stats(TOPIC, GROUP) == (Stats() if taken_over else Stats(leased=6))
    if not taken_over:
        assert len(store.ack(taken)) == 6


def test_a_publish_stopped_before_its_write_comes_after_the_others(store, child):
    child.ask("publish", ["first"])
    child.ask("stop", "before insert messages")
    child.tell("publish", ["late", "k"], ["later", "k"])
    child.wait_stopped("before insert messages")
    store.append([message("other", "k")])
    taken = claim(store)
    assert ids(taken) == [*NAMES, "first", "other"]
    child.resume()
    child.hear_answer()
    assert claim(store) == []  # behind their key
    store.ack(taken)
    late = claim(store)
    assert ids(late) == ["late"]
    store.ack(late)
    assert ids(claim(store)) == ["later"]


def test_a_publish_that_was_seen_before_it_returned_is_not_delivered_again(store, child):
    child.ask("publish", ["first"])
    child.ask("stop", "after insert messages")
    child.tell("publish", ["slow"])
    child.wait_stopped("after insert messages")
    store.append([message("other")])
    taken = claim(store)
    assert ids(taken) == [*NAMES, "first", "slow", "other"]
    store.ack(taken)
    child.resume()
    child.hear_answer()
    assert claim(store) == []
    assert store.stats(TOPIC, GROUP) == Stats()


@pytest.fixture
def land_late(
    store: ClickHouseStore,
    child: Child,
    clickhouse_server: ClickHouseServer,
    clickhouse_database: str,
) -> Callable[..., list[Any]]:
    """Has the child store "landed" below the cursor of the group, and stop behind that.

    The server looked at the fence before another's raise, and stored after it. Returns the claims
    that moved the cursor.
    """

    def land(key: str = "") -> list[Any]:
        fence = f"{clickhouse_database}.queue_fence"
        child.ask("publish", ["first"])
        child.ask("stop", "before insert messages", "after insert messages")
        child.tell("publish", ["landed", key])
        child.wait_stopped("before insert messages")
        store.append([message("other", key)])
        taken = claim(store)
        assert ids(taken) == [*NAMES, "first", "other"]
        raised = clickhouse_server.execute(f"SELECT joinGet('{fence}', 'fence', 'p')").strip()
        # Nothing can hold the server between its look and its write; so it looks the other way.
        clickhouse_server.execute(f"INSERT INTO {fence} VALUES ('p', 1, 1)")
        child.resume()
        child.wait_stopped("after insert messages")
        clickhouse_server.execute(f"INSERT INTO {fence} VALUES ('p', {raised}, {raised})")
        assert claim(store) == []
        return taken

    return land


@pytest.mark.parametrize("key", ["", "k"])
def test_a_publish_that_landed_below_a_cursor_is_given_to_the_group(store, child, land_late, key):
    taken = land_late(key)
    child.resume()
    child.hear_answer()
    if key:
        assert claim(store) == []
        assert len(store.ack(taken)) == len(taken)
    landed = claim(store)
    assert ids(landed) == ["landed"]
    store.ack(landed)
    assert claim(store) == []
    assert store.stats(TOPIC, GROUP).pending == 0


@pytest.mark.parametrize("key", ["", "k"])
def test_if_its_publisher_is_killed_the_janitor_gives_it(
    url, store, child, open_store, land_late, key
):
    taken = land_late(key)
    child.kill()
    store.append([message("landed", key)])  # the producer tries again: it is stored already
    assert claim(store) == []
    janitor = open_store(url, clock=ManualClock(datetime.now(UTC) + timedelta(seconds=61)))
    janitor.purge(KEEP_ALL, 100)
    if key:
        assert claim(store) == []
    assert len(store.ack(taken)) == len(taken)
    landed = claim(store)
    assert ids(landed) == ["landed"]
    store.ack(landed)
    janitor.purge(KEEP_ALL, 100)
    assert claim(store) == []
    assert store.stats(TOPIC, GROUP) == Stats()


def test_if_its_publisher_is_stopped_for_long_it_is_delivered_once(
    url, store, child, open_store, land_late, monkeypatch
):
    """The janitor gives it, and sweeps it when it has ended, before the publisher wakes."""
    monkeypatch.setattr("queue_lib.stores.clickhouse.upkeep._SWEEP_LEAST", 1)
    store.ack(land_late())
    clock = ManualClock(datetime.now(UTC) + timedelta(seconds=61))
    janitor = open_store(url, clock=clock)
    janitor.purge(KEEP_ALL, 100)
    assert len(store.ack(claim(store))) == 1
    clock.advance(601)
    janitor.purge(KEEP_ALL, 100)
    child.resume()
    child.hear_answer()
    assert claim(store) == []


def test_a_janitor_that_was_stopped_while_it_searched_gives_nothing_twice(
    url, store, open_store, monkeypatch
):
    """Another one has looked and swept before it comes in with what it found."""
    monkeypatch.setattr("queue_lib.stores.clickhouse.upkeep._SWEEP_LEAST", 1)
    store.ack(claim(store))
    clock = ManualClock(datetime.now(UTC) + timedelta(seconds=61))
    slow, other = open_store(url, clock=clock), open_store(url, clock=clock)
    found: list[Any] = []
    original = Database.select

    def select(self: Database, query: str) -> list[Any]:
        if "NOT IN" in query and "stored >=" in query and not found:
            found.append(True)
            clock.advance(601)
            other.purge(KEEP_ALL, 100)  # its search is nested, and not stopped
            clock.advance(601)
            other.purge(KEEP_ALL, 100)
        return original(self, query)

    monkeypatch.setattr(Database, "select", select)
    slow.purge(KEEP_ALL, 100)
    assert found
    assert claim(store) == []
