"""Waking: what is due runs when it is due, though the poll interval is a minute."""

from __future__ import annotations

import itertools
import time
from datetime import UTC, datetime, timedelta

import pytest

from queue_lib import Delivery, Message, Stats
from queue_lib.engine.queue import StoreQueue
from queue_lib.stores.base import Peeker
from queue_lib.testing.faults import PausingStore
from tests.engine.conftest import OpenQueue
from tests.engine.harness import (
    DEADLINE,
    GROUP,
    MINUTE,
    TOPIC,
    Backend,
    Diary,
    Gate,
    Inbox,
    eventually,
    messages,
    start_child,
)

SOON = 2.0
"""A wake-up takes no longer; a poll takes a minute."""

PUNCTUAL = 0.1
"""How late a message that was due may run …"""


def assert_punctual(late: list[float], backend: Backend) -> None:
    """… at least in the best case: on a busy machine any single one may have to wait."""
    assert min(late) < PUNCTUAL + 2 * backend.latency, late
    assert max(late) < SOON, late


def idle(queue: StoreQueue) -> None:
    """Wait until every subscription has claimed and found nothing."""
    eventually(lambda: all(s.since_claim is not None for s in queue.health().subscriptions))


def in_ms(milliseconds: int) -> datetime:
    return datetime.now(UTC) + timedelta(milliseconds=milliseconds)


def test_a_publish_wakes_the_queue_s_own_subscriptions(backend: Backend, queue: StoreQueue) -> None:
    inboxes = [Inbox(), Inbox()]
    for inbox, group in zip(inboxes, ("one", "two"), strict=True):
        queue.subscribe(TOPIC, group, inbox, **MINUTE)
    late = []
    for count, message in enumerate(messages(5), start=1):
        idle(queue)
        published = time.monotonic()
        queue.publish(message)
        for inbox in inboxes:
            inbox.wait(count)
        late.append(max(inbox.times[-1] for inbox in inboxes) - published)
    assert_punctual(late, backend)


@pytest.mark.requires("wake")
def test_a_publish_wakes_other_queues(open_queue: OpenQueue) -> None:
    here, there = open_queue(), open_queue()
    inbox = Inbox()
    here.subscribe(TOPIC, GROUP, inbox, **MINUTE)
    idle(here)
    published = time.monotonic()
    there.publish(*messages(1))
    inbox.wait()
    assert inbox.times[0] - published < SOON


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.requires("shared", "wake")
def test_a_publish_wakes_other_processes(backend: Backend, queue: StoreQueue) -> None:
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, inbox, **MINUTE)
    idle(queue)
    with start_child("publish", backend) as child:
        published, _ = child.communicate("go\n", timeout=DEADLINE)
    inbox.wait()
    assert inbox.times[0] - float(published) < SOON  # one monotonic clock for all processes


def test_what_is_there_when_a_subscription_starts_is_handled_at_once(queue: StoreQueue) -> None:
    queue.subscribe(TOPIC, GROUP, Inbox()).close()
    queue.publish(*messages(1))
    inbox = Inbox()
    began = time.monotonic()
    queue.subscribe(TOPIC, GROUP, inbox, **MINUTE)
    inbox.wait()
    assert inbox.times[0] - began < SOON


@pytest.mark.slow
def test_a_retry_runs_when_it_is_due(backend: Backend, open_queue: OpenQueue) -> None:
    diary = Diary(backend.open())
    queue = open_queue(diary)

    def handle(delivery: Delivery) -> None:
        if delivery.attempt < 5:
            raise ValueError

    inbox = Inbox(then=handle)
    options = {**MINUTE, "backoff_base": 0.3, "backoff_max": 0.3}
    queue.subscribe(TOPIC, GROUP, inbox, **options)
    queue.publish(*messages(1))
    inbox.wait(5)
    late = []
    for entry, again in zip(diary.of("retry"), inbox.times[1:], strict=True):
        backoff = entry.args[1].total_seconds()
        assert 0.15 <= backoff <= 0.3
        assert again >= entry.began + backoff - 0.001, "too early"
        late.append(again - entry.ended - backoff)
    assert_punctual(late, backend)


@pytest.mark.slow
@pytest.mark.parametrize(
    "publisher",
    ["itself", "before", pytest.param("another", marks=pytest.mark.requires("wake"))],
)
def test_a_scheduled_message_runs_when_it_is_due_and_never_before(
    backend: Backend, open_queue: OpenQueue, publisher: str
) -> None:
    queue = open_queue()
    queue.subscribe(TOPIC, GROUP, Inbox()).close()
    ran: dict[str, datetime] = {}

    def handle(delivery: Delivery) -> None:
        ran[delivery.id] = datetime.now(UTC)

    inbox = Inbox(then=handle)
    if publisher != "before":
        queue.subscribe(TOPIC, GROUP, inbox, **MINUTE)
        idle(queue)
    due = {str(number): in_ms(300 + 40 * number) for number in range(5)}
    (open_queue() if publisher == "another" else queue).publish(
        *[Message(TOPIC, id=id, deliver_at=at) for id, at in due.items()]
    )
    if publisher == "before":
        queue.subscribe(TOPIC, GROUP, inbox, **MINUTE)
    inbox.wait(5)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    late = [(ran[id] - at).total_seconds() for id, at in due.items()]
    assert min(late) >= 0, "too early"
    assert_punctual(late, backend)


def test_what_an_outcome_sets_free_runs_at_once(queue: StoreQueue) -> None:
    """The next of a key, after a success, a failure and a death; the next above the cap."""

    def handle(delivery: Delivery) -> None:
        number = int(delivery.payload)
        if number % 3 == 1 and delivery.attempt == 1:
            raise ValueError
        if number % 3 == 2:
            raise ValueError

    began = time.monotonic()
    for group, cap in (("keys", 0), ("cap", 1)):
        inbox = Inbox(then=handle)
        queue.subscribe(TOPIC, group, inbox, **MINUTE, max_attempts=2, max_in_flight=cap)
    queue.publish(*messages(9, key="k"))
    eventually(lambda: queue.stats(TOPIC, "keys") == queue.stats(TOPIC, "cap") == Stats(dead=3))
    assert time.monotonic() - began < DEADLINE / 2


def test_a_wake_that_comes_during_a_claim_is_not_lost(
    backend: Backend, open_queue: OpenQueue
) -> None:
    pausing = PausingStore(backend.open())
    queue = open_queue(pausing)
    inbox = Inbox()
    with pausing.pause_on("claim", applied=True) as pause:  # it has found nothing …
        queue.subscribe(TOPIC, GROUP, inbox, **MINUTE)
        pause.wait_reached()
        queue.publish(*messages(1))  # … and now there is something
    inbox.wait()


def test_a_wake_while_every_slot_is_taken_is_not_lost(queue: StoreQueue) -> None:
    with Gate() as gate:
        queue.subscribe(TOPIC, GROUP, gate, **MINUTE, concurrency=1)
        queue.publish(*messages(1))
        gate.wait()
        queue.publish(*messages(1, start=1))
        gate.open()
        gate.wait(2)


@pytest.mark.slow
def test_an_idle_subscription_asks_once_a_poll_and_nothing_else(
    backend: Backend, open_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    extremes = itertools.cycle((0.8, 1.2))
    monkeypatch.setattr("random.uniform", lambda *bounds: bounds[next(extremes) > 1])
    diary = Diary(backend.open())
    queue = open_queue(diary)
    queue.subscribe(TOPIC, GROUP, Inbox(), poll_interval=0.1, lease_duration=0.3)
    looks = "peek" if isinstance(diary, Peeker) else "claim"
    entries = diary.wait(looks, 9)[2:]  # a listener that just came up wakes once
    pauses = [after.began - before.ended for before, after in itertools.pairwise(entries)]
    assert min(pauses) >= 0.08 - 0.005
    assert sum(pause >= 0.12 - 0.005 for pause in pauses) >= len(pauses) // 2  # ±20 % in turns
    for method in ("ack", "extend", "release", "retry", "kill", "stats", "ping"):
        assert diary.of(method) == []
    assert looks == "claim" or len(diary.of("claim")) <= 3
