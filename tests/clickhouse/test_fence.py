"""A process that is stopped past the end of its lock, at the worst moments, breaks nothing.

Each test says where the child stops; the test's own process comes in meanwhile. Nothing depends
on clocks but that the lock's lease ends while the child is stopped.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

if not os.environ.get("CI"):
    pytest.importorskip("clickhouse_sqlalchemy", reason="the extra clickhouse is not installed")

from queue_lib.options import StartFrom
from queue_lib.stores.base import Stats
from queue_lib.stores.clickhouse.database import Database
from queue_lib.stores.clickhouse.store import ClickHouseStore
from tests.clickhouse.child import GROUP, TOPIC, claim, message

pytestmark = [pytest.mark.slow, pytest.mark.processes]

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


@pytest.mark.parametrize("key", ["", "k"])
def test_a_publish_that_landed_below_a_cursor_is_given_to_the_group(
    store, child, clickhouse_server, clickhouse_database, key
):
    """The server looked at the fence before another's raise, and stored after it."""
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


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_publisher_killed_in_mid_call_leaves_all_or_nothing(store, child, point):
    names = [f"k{number:04}" for number in range(2000)]
    child.ask("stop", f"{point} insert messages")
    child.tell("publish", *([name] for name in names))
    child.wait_stopped(f"{point} insert messages")
    child.kill()
    stored = store.stats(TOPIC, GROUP).pending - len(NAMES)
    assert stored == (0 if point == "before" else 2000)
    store.append([message(name) for name in names])  # as the producer does again
    assert store.stats(TOPIC, GROUP).pending == len(NAMES) + 2000
    assert ids(claim(store, 5000)) == [*NAMES, *names]


def test_a_claimer_killed_behind_its_write_loses_nothing(store, child):
    child.ask("stop", "after insert live")
    child.tell("claim", 100, 0.5)
    child.wait_stopped("after insert live")
    child.kill()
    taken: list[Any] = []
    while len(taken) < len(NAMES):
        taken += claim(store)
    assert [(found.message.id, found.attempt) for found in taken] == [(name, 2) for name in NAMES]
