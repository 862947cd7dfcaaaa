"""The janitor removes the rows of deliveries that ended, while others work, and nothing else."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

if not os.environ.get("CI"):
    pytest.importorskip("clickhouse_sqlalchemy", reason="the extra clickhouse is not installed")

from queue_lib.locks import ProcessLocker
from queue_lib.message import Message
from queue_lib.options import StartFrom
from queue_lib.stores.base import GroupStats, PurgePolicy, Stats
from queue_lib.stores.clickhouse.database import Database
from queue_lib.testing.clock import ManualClock
from tests.clickhouse.child import GROUP, TOPIC, Child, claim, message
from tests.clickhouse_server import ClickHouseServer

if TYPE_CHECKING:
    from queue_lib.stores.clickhouse.store import ClickHouseStore

DAY = timedelta(days=1)
KEEP_ALL = PurgePolicy(30 * DAY, 30 * DAY)
YOUNG, OLD = 590, 20  # seconds: their sum is what a delivery must have ended ago

Ask = Callable[[str], list[str]]
Open = Callable[[], "ClickHouseStore"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime.now(UTC))


@pytest.fixture
def open_here(url: str, open_store: Callable[..., ClickHouseStore], clock: ManualClock) -> Open:
    """Opens handles that share a locker and the test's clock."""
    locker = ProcessLocker()
    return lambda: open_store(url, locker=locker, clock=clock)


@pytest.fixture
def ask(clickhouse_server: ClickHouseServer, clickhouse_database: str) -> Ask:
    """Asks the server, in the test's database."""

    def ask(query: str) -> list[str]:
        tables = f"{clickhouse_database}.queue_"
        return clickhouse_server.execute(query.replace("{q}", tables)).split()

    return ask


@pytest.fixture(autouse=True)
def _few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_lib.stores.clickhouse.upkeep._SWEEP_LEAST", 1)


def ids(claims: list[Any]) -> list[str]:
    return [found.message.id for found in claims]


def drain(store: ClickHouseStore) -> list[str]:
    seen: list[str] = []
    while claims := claim(store):
        assert len(store.ack(claims)) == len(claims)
        seen += ids(claims)
    return seen


def leftovers(ask: Ask) -> int:
    """Count the rows, tombstones too, of deliveries that are no more."""
    alive = "SELECT seq FROM {q}live FINAL WHERE kind IN (0, 1, 3, 4)"
    (count,) = ask(
        f"SELECT count() FROM {{q}}live WHERE kind IN (0, 1, 3, 4) AND seq NOT IN ({alive})"
    )
    return int(count)


def mutations(ask: Ask) -> int:
    (count,) = ask("SELECT count() FROM system.mutations WHERE database || '.queue_' = '{q}'")
    return int(count)


def test_it_takes_what_ended_and_leaves_what_is_alive(
    open_here: Open, clock: ManualClock, ask: Ask
):
    store = open_here()
    store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    scheduled = message("scheduled")
    scheduled.deliver_at = clock.instant(DAY)
    store.append(
        [*map(message, ("leased", "retrying", "ready", "dead")), scheduled]
        + [message(name, "k") for name in ("head", "second", "third")]
    )
    leased, retrying, ready, dead, head = claim(store, lease=9 * DAY.total_seconds())
    store.retry(retrying, DAY, "why")
    store.release([ready])
    store.kill(dead, "why")
    # What ends in every way there is, behind all of these.
    soon = message("soon")
    soon.deliver_at = clock.instant(1)
    store.append(
        [
            soon,
            message("urgent", priority=-1),
            *(message(f"lane{n}", "lane") for n in range(3)),
            message("twice"),
        ]
    )
    first = {found.message.id: found for found in claim(store)}
    assert set(first) == {"ready", "urgent", "lane0", "twice"}
    store.release([first.pop("ready")])
    store.retry(first.pop("twice"), timedelta(seconds=1), "again")
    store.ack(list(first.values()))
    clock.advance(2)
    (again,) = claim(store, 1)
    assert again.message.id == "ready"
    assert drain(store) == ["soon", "lane1", "twice", "lane2"]
    store.release([again])
    alive = GroupStats(
        ready=1, scheduled=1, retrying=1, behind_key=2, leased=2, dead=1,
        oldest_ready_age=timedelta(seconds=YOUNG + OLD),
    )  # fmt: skip

    clock.advance(YOUNG)
    assert leftovers(ask) > 0
    store.purge(KEEP_ALL, 100)
    assert mutations(ask) == 0
    clock.advance(OLD)
    store.purge(KEEP_ALL, 100)
    assert leftovers(ask) == 0
    for handle in (store, open_here()):
        assert handle.group_stats(TOPIC, GROUP) == alive
    assert len(store.ack([leased, head])) == 2
    assert drain(open_here()) == ["ready", "second", "third"]
    clock.advance(DAY)
    assert drain(store) == ["retrying", "scheduled"]
    assert store.stats(TOPIC, GROUP) == Stats(dead=1)


def test_a_few_are_not_worth_it(
    open_here: Open, clock: ManualClock, ask: Ask, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("queue_lib.stores.clickhouse.upkeep._SWEEP_LEAST", 4)
    store = open_here()
    store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    for count in (3, 1):
        store.append([message(f"{count} {n}") for n in range(count)])
        assert len(drain(store)) == count
        clock.advance(YOUNG + OLD)
        store.purge(KEEP_ALL, 100)
        assert leftovers(ask) == (0 if count == 1 else 6)


def test_rows_go_though_their_messages_went_long_before(
    open_here: Open, clock: ManualClock, ask: Ask
):
    """A short retention must not keep the rows for ever: what ended is known without messages."""
    store = open_here()
    store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    store.append([message("a"), message("b", "k"), message("dead")])
    store.kill(claim(store)[2], "why")
    clock.advance(60)
    assert drain(store) == ["a", "b"]
    clock.advance(1)
    assert store.purge(PurgePolicy(timedelta(0), timedelta(0)), 100) == 4
    assert ask("SELECT count() FROM {q}messages") == ["0"]
    clock.advance(YOUNG + OLD)
    store.purge(KEEP_ALL, 100)
    assert ask("SELECT kind FROM {q}live FINAL") == ["5"]
    assert leftovers(ask) == 0
    assert ask("SELECT count() FROM {q}live WHERE kind = 2") == ["0"]


def test_others_work_at_every_moment_of_it(
    open_here: Open, clock: ManualClock, ask: Ask, monkeypatch: pytest.MonkeyPatch
):
    """Nobody sees anything of the lanes that it clears, before and between its deletes.

    Neither a handle that comes in cold, nor the server, which compares the lanes of new messages
    with those that there are, when one has a priority.
    """
    # No merge: a tombstone stays in another part than what it covers.
    ask("ALTER TABLE {q}live MODIFY SETTING max_bytes_to_merge_at_max_space_in_pool = 1")
    janitor = open_here()
    janitor.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    janitor.append([message(f"old {key}", key) for key in "abc"])
    (head, *others) = claim(janitor)
    janitor.ack(others)
    janitor.retry(head, timedelta(0), "once more")
    assert drain(janitor) == ["old a"]
    clock.advance(YOUNG + OLD)
    original, numbers = Database.command, itertools.count()

    def work() -> None:
        store, number = open_here(), next(numbers)
        urgent = message(f"urgent {number}", priority=-1)
        store.append([message(f"{number} {key}", key) for key in "abc"] + [urgent])
        assert store.stats(TOPIC, GROUP) == Stats(pending=4)
        assert drain(store) == [f"urgent {number}", *(f"{number} {key}" for key in "abc")]
        assert store.stats(TOPIC, GROUP) == Stats()

    def command(self: Database, sql: str) -> None:
        if sql.startswith("DELETE"):
            work()
        original(self, sql)

    monkeypatch.setattr(Database, "command", command)
    janitor.purge(KEEP_ALL, 100)
    work()
    assert next(numbers) == 4
    assert ask("SELECT uniqExact(seq) FROM {q}live WHERE kind != 5") == ["16"]


@pytest.mark.parametrize("operation", ["claim", "ack", "retry", "kill", "publish"])
def test_it_may_run_within_any_operation(
    open_here: Open,
    clock: ManualClock,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
):
    store, janitor = open_here(), open_here()
    store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    store.append([message(f"old {number}", "k") for number in range(5)])
    assert len(drain(store)) == 5
    clock.advance(YOUNG + OLD)
    store.append([message("first", "k"), message("second", "k")])
    operations: dict[str, Callable[[Any], object]] = {
        "claim": lambda _: claim(store),
        "ack": store.ack,
        "retry": lambda held: store.retry(held[0], timedelta(0), "why"),
        "kill": lambda held: store.kill(held[0], "why"),
        "publish": lambda _: store.append([message("third", "k")]),
    }
    held = [] if operation == "claim" else claim(store)
    original = Database.insert

    def insert(self: Database, table: str, *rest: Any) -> None:
        monkeypatch.setattr(Database, "insert", original)
        before = clock.instant(-YOUNG)
        janitor._upkeep._sweep(int(before.timestamp() * 1e6))
        original(self, table, *rest)

    monkeypatch.setattr(Database, "insert", insert)
    assert operations[operation](held) != []
    ended = operation in {"ack", "kill"}
    assert leftovers(ask) == (4 if ended else 0)  # two rows and their tombstones, of the first
    fresh = open_here()
    clock.advance(60)
    names = ["first", "second", *(["third"] if operation == "publish" else [])]
    assert drain(fresh) == names[ended:]
    assert fresh.stats(TOPIC, GROUP) == Stats(dead=operation == "kill")


@pytest.mark.slow
@pytest.mark.processes
def test_what_ended_just_now_stays_for_a_publisher_that_comes_late(
    store: ClickHouseStore, child: Child, ask: Ask
):
    """It asks whether a group has seen its message: by then that may have ended."""
    store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    child.ask("publish", ["first"])
    child.ask("stop", "after insert messages")
    child.tell("publish", ["slow"])
    child.wait_stopped("after insert messages")
    store.append([message("other")])
    assert drain(store) == ["first", "slow", "other"]
    store.purge(KEEP_ALL, 100)
    assert mutations(ask) == 0
    child.resume()
    child.hear_answer()
    assert claim(store) == []
    assert store.stats(TOPIC, GROUP) == Stats()


def test_deaths_that_were_kept_long_enough_leave_nothing(
    open_here: Open, clock: ManualClock, ask: Ask
):
    store = open_here()
    store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    store.append([Message(TOPIC, id=f"m{n}", published_at=clock.instant()) for n in range(5)])
    for found in claim(store):
        store.kill(found, "why")
        clock.advance(1)
    policy = PurgePolicy(timedelta(seconds=2.5), 30 * DAY)
    assert store.purge(policy, 2) == 2
    assert store.purge(policy, 2) == 1
    assert store.stats(TOPIC, GROUP) == Stats(dead=2)
    assert ask("SELECT count() FROM {q}live WHERE kind = 2") == ["2"]
