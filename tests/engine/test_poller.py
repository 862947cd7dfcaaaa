"""Idle subscriptions are looked after together, and none of them misses anything by that."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queue_lib import Message, Stats, Store, StoreError
from queue_lib.stores.base import Peeker
from queue_lib.testing.faults import FaultyStore, StoreWrapper
from tests.engine.conftest import OpenQueue
from tests.engine.harness import (
    DEADLINE,
    GROUP,
    TOPIC,
    Backend,
    Diary,
    Gate,
    Inbox,
    eventually,
    messages,
)

pytestmark = pytest.mark.slow


class Deaf(StoreWrapper):
    """A store that hears nothing of other processes: only looking finds what they did."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.__dict__.pop("listen", None)


@pytest.fixture(autouse=True)
def _only_where_the_store_can(backend: Backend) -> None:
    store = backend.open()
    can = isinstance(store, Peeker)
    store.close()
    if not can:
        pytest.skip(f"{backend.name} lacks peek")


def elsewhere(backend: Backend, *published: Message) -> None:
    """Publish past every queue of this process."""
    store = backend.open()
    for number, message in enumerate(published):
        message.id = message.id or f"elsewhere-{number}"
        message.published_at = datetime.now(UTC)
    store.append(published)
    store.close()


def test_twenty_idle_subscriptions_are_one_statement_a_poll(
    backend: Backend, open_queue: OpenQueue
) -> None:
    diary = Diary(Deaf(backend.open()))
    queue = open_queue(diary)
    groups = {(TOPIC, f"{GROUP}-{number}") for number in range(20)}
    for topic, group in groups:
        queue.subscribe(topic, group, Inbox(), poll_interval=0.2)
    eventually(lambda: any(set(entry.args[0]) == groups for entry in diary.of("peek")))
    claims, looks = len(diary.of("claim")), len(diary.of("peek"))
    diary.wait("peek", looks + 5)
    assert len(diary.of("claim")) == claims <= 20
    assert all(set(entry.args[0]) == groups for entry in diary.of("peek")[looks:])


def test_what_others_published_is_found(backend: Backend, open_queue: OpenQueue) -> None:
    queue = open_queue(Deaf(backend.open()))
    inboxes = {group: Inbox() for group in (GROUP, "audit")}
    for group, inbox in inboxes.items():
        queue.subscribe(TOPIC, group, inbox, poll_interval=0.05)
    for round_ in range(1, 4):
        elsewhere(backend, *messages(3, start=3 * round_))
        for inbox in inboxes.values():
            inbox.wait(3 * round_)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())


def test_what_others_scheduled_is_in_time(backend: Backend, open_queue: OpenQueue) -> None:
    """Polls come half a second apart; the time of the message is between two of them."""
    queue = open_queue(Deaf(backend.open()))
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, inbox, poll_interval=0.5)
    eventually(lambda: queue.health().subscriptions[0].since_claim is not None)
    for number in range(3):
        due = datetime.now(UTC) + timedelta(seconds=0.8)
        elsewhere(backend, Message(TOPIC, b"", id=f"at {number}", deliver_at=due))
        inbox.wait(number + 1)
        late = datetime.now(UTC) - due
        assert timedelta(0) <= late < timedelta(seconds=0.2)


def test_a_shorter_interval_that_joins_is_kept(backend: Backend, open_queue: OpenQueue) -> None:
    diary = Diary(Deaf(backend.open()))
    queue = open_queue(diary)
    queue.subscribe(TOPIC, GROUP, Inbox(), poll_interval=3600)
    diary.wait("claim")
    queue.subscribe(TOPIC, "audit", inbox := Inbox(), poll_interval=0.05)
    diary.wait("peek", 2)
    elsewhere(backend, *messages(1))
    inbox.wait(1)


def test_a_subscription_that_was_closed_is_not_looked_after(
    backend: Backend, open_queue: OpenQueue
) -> None:
    diary = Diary(Deaf(backend.open()))
    queue = open_queue(diary)
    queue.subscribe(TOPIC, GROUP, Inbox(), poll_interval=0.05)
    queue.subscribe(TOPIC, "audit", Inbox(), poll_interval=0.05).close(DEADLINE)
    looks = len(diary.of("peek"))
    entries: list[Any] = diary.wait("peek", looks + 3)[looks + 1 :]
    assert all(entry.args[0] == [(TOPIC, GROUP)] for entry in entries)


def test_without_a_free_slot_nobody_looks(backend: Backend, open_queue: OpenQueue) -> None:
    diary = Diary(Deaf(backend.open()))
    queue = open_queue(diary)
    queue.subscribe(TOPIC, "idle", Inbox(), poll_interval=0.05)
    with Gate() as gate:
        queue.subscribe(TOPIC, GROUP, gate, poll_interval=0.05, concurrency=2)
        queue.publish(*messages(5))
        gate.wait(2)
        looks = len(diary.of("peek"))
        entries: list[Any] = diary.wait("peek", looks + 5)[looks + 1 :]
        assert all(entry.args[0] == [(TOPIC, "idle")] for entry in entries)
        gate.open()
        gate.wait(5)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())


def test_each_looks_by_itself_while_looking_together_fails(
    backend: Backend, open_queue: OpenQueue
) -> None:
    store = FaultyStore(Deaf(backend.open()))
    queue = open_queue(store)
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, inbox, poll_interval=0.05)
    store.fail_on("peek", StoreError("broken"), times=None)
    eventually(lambda: store.raised["peek"] >= 2)
    assert queue.health().errors == ("poll: broken",)
    elsewhere(backend, *messages(2))
    inbox.wait(2)
    store.heal("peek")
    eventually(lambda: queue.health().errors == ())
    elsewhere(backend, *messages(1, start=7))
    inbox.wait(3)


def test_a_store_that_is_away_is_asked_again(backend: Backend, open_queue: OpenQueue) -> None:
    store = FaultyStore(Deaf(backend.open()))
    queue = open_queue(store)
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, inbox, poll_interval=0.05)
    for method in ("peek", "claim"):
        store.fail_on(method, times=None)
    eventually(lambda: not queue.health().ok)
    elsewhere(backend, *messages(1))
    store.heal("peek")
    store.heal("claim")
    began = time.monotonic()
    inbox.wait(1)
    assert time.monotonic() - began < 6  # its longest pause between two tries
    eventually(lambda: queue.health().ok)
