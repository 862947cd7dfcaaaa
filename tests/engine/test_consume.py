"""The good path: what a handler gets, how much is claimed at once, and who gets it."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from queue_lib import Message, Stats, Store, delivery_id
from queue_lib.engine.pump import MAX_ACK_BATCH
from queue_lib.engine.queue import StoreQueue
from queue_lib.testing.faults import PausingStore, StoreWrapper
from tests.engine.conftest import OpenQueue
from tests.engine.harness import (
    DEADLINE,
    FAST,
    GROUP,
    MINUTE,
    TOPIC,
    Backend,
    Diary,
    Gate,
    Inbox,
    eventually,
    messages,
)


def test_a_handler_gets_what_was_published_and_its_return_acknowledges(queue: StoreQueue) -> None:
    before = datetime.now(UTC)
    inbox = Inbox(then=lambda _: object())  # whatever is returned
    queue.subscribe(TOPIC, GROUP, inbox, **FAST)
    message = Message(
        TOPIC, bytes(range(256)), key="clé", headers={"trace": "1", "ü": "…"}, priority=-3
    )
    queue.publish(message)
    (delivery,) = inbox.wait()
    assert message.id
    assert message.published_at is not None
    assert before <= message.published_at <= datetime.now(UTC)
    assert (delivery.topic, delivery.group, delivery.attempt) == (TOPIC, GROUP, 1)
    assert delivery.delivery_id == delivery_id(message.id, GROUP)
    for field in ("payload", "key", "id", "headers", "deliver_at", "published_at", "priority"):
        assert getattr(delivery, field) == getattr(message, field)
    assert not delivery.cancelled
    assert delivery.cancel_reason is None
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())


def test_every_group_gets_every_message(queue: StoreQueue) -> None:
    inboxes = {group: Inbox() for group in ("billing", "audit", "mail")}
    for group, inbox in inboxes.items():
        queue.subscribe(TOPIC, group, inbox, **FAST)
    queue.publish(*messages(10))
    for inbox in inboxes.values():
        inbox.wait(10)
    queue.close()
    expected = sorted(message.id for message in messages(10))
    assert all(sorted(inbox.ids) == expected for inbox in inboxes.values())


def test_two_subscriptions_of_a_group_compete(open_queue: OpenQueue) -> None:
    first, second = open_queue(), open_queue()
    with Gate() as here, Gate() as there:
        first.subscribe(TOPIC, GROUP, here, **FAST, concurrency=1)
        second.subscribe(TOPIC, GROUP, there, **FAST, concurrency=1)
        first.publish(*messages(40))
        here.wait()
        there.wait()  # neither keeps the other from working
        here.open()
        there.open()
        eventually(lambda: first.stats(TOPIC, GROUP) == Stats())
    assert sorted(here.ids + there.ids) == sorted(message.id for message in messages(40))


def test_the_concurrency_is_reached_and_never_passed(queue: StoreQueue) -> None:
    with Gate() as gate:
        queue.subscribe(TOPIC, GROUP, gate, **FAST, concurrency=5, batch_size=3)
        queue.publish(*messages(30))
        gate.wait(5)
        assert queue.stats(TOPIC, GROUP) == Stats(pending=25, leased=5)
        gate.let_pass(10)
        gate.wait(15)
        gate.open()
        gate.wait(30)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    assert gate.peak == 5


def test_a_claim_asks_for_no_more_than_a_batch_and_the_free_slots(
    backend: Backend, open_queue: OpenQueue
) -> None:
    open_queue().subscribe(TOPIC, GROUP, Inbox()).close()
    diary = Diary(backend.open())
    queue = open_queue(diary)
    queue.publish(*messages(12))
    with Gate() as gate:
        queue.subscribe(TOPIC, GROUP, gate, **MINUTE, concurrency=4, batch_size=3)
        gate.wait(4)
        for passed in range(1, 4):
            gate.let_pass()
            gate.wait(4 + passed)
        # Full claims are followed by the next as soon as there is a slot, and by none before.
        assert [entry.args[0].max for entry in diary.of("claim")] == [3, 1, 1, 1, 1]
        gate.open()
        gate.wait(12)


def test_acknowledgements_come_in_batches_of_their_own_accord(
    backend: Backend, open_queue: OpenQueue
) -> None:
    open_queue().subscribe(TOPIC, GROUP, Inbox()).close()
    diary = Diary(backend.open())
    pausing = PausingStore(diary)
    queue = open_queue(pausing)
    queue.publish(*messages(600))
    inbox = Inbox()
    with pausing.pause_on("ack") as pause:
        queue.subscribe(TOPIC, GROUP, inbox, **MINUTE, concurrency=600, batch_size=600)
        pause.wait_reached()
        inbox.wait(600)  # what finishes while a statement runs …
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    sizes = [len(entry.args[0]) for entry in diary.of("ack")]
    assert sum(sizes) == 600
    assert max(sizes) <= MAX_ACK_BATCH
    assert len(sizes) <= 1 + 600 // MAX_ACK_BATCH + 2  # … is acknowledged by the next


class Turns(StoreWrapper):
    """Sees who acknowledges and claims, and that they take turns."""

    def __init__(self, store: Store) -> None:
        self.takers = Counter[str]()
        self.met = 0
        self._turn = threading.Lock()
        super().__init__(store)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if method not in ("ack", "claim", "ack_and_claim"):
            return super().call(method, *args, **kwargs)
        if not self._turn.acquire(blocking=False):
            self.met += 1
            self._turn.acquire()
        try:
            self.takers[threading.current_thread().name.partition(":")[0]] += 1
            return super().call(method, *args, **kwargs)
        finally:
            self._turn.release()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_the_last_handler_of_a_batch_claims_the_next_one(
    backend: Backend, open_queue: OpenQueue, concurrency: int
) -> None:
    """It saves two switches of threads; still, one thread at a time talks to the store."""
    turns = Turns(backend.open())
    queue = open_queue(turns)
    open_queue().subscribe(TOPIC, GROUP, Inbox()).close()
    queue.publish(*messages(60))
    inbox = Inbox()
    subscription = queue.subscribe(TOPIC, GROUP, inbox, **MINUTE, concurrency=concurrency)
    inbox.wait(60)
    assert subscription.close(DEADLINE)
    assert queue.stats(TOPIC, GROUP) == Stats()
    assert "queue-handler" in turns.takers
    assert turns.met == 0


def test_nobody_is_woken_while_handlers_take_no_time(
    backend: Backend, open_queue: OpenQueue
) -> None:
    """A thread that runs a whole claim goes on to the store itself, and so to the next one."""
    turns = Turns(backend.open())
    queue = open_queue(turns)
    open_queue().subscribe(TOPIC, GROUP, Inbox()).close()
    queue.publish(*messages(400))
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, inbox, **MINUTE, concurrency=4)
    inbox.wait(400)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    assert turns.takers["queue-pump"] < turns.takers["queue-handler"] / 4


def test_an_acknowledgement_does_not_wait_for_the_handlers_behind_it(queue: StoreQueue) -> None:
    """Even if the thread that ended one takes the next of the same claim, and that takes long."""
    queue.subscribe(TOPIC, GROUP, Inbox()).close()
    queue.publish(*messages(4))
    inbox = Inbox()
    with Gate() as gate:
        queue.subscribe(
            TOPIC, GROUP, lambda d: inbox(d) if d.id == "orders-0" else gate(d), **MINUTE
        )
        gate.wait(3)
        eventually(lambda: queue.stats(TOPIC, GROUP) == Stats(leased=3))


def test_an_acknowledgement_does_not_wait_for_a_batch_to_fill(
    backend: Backend, open_queue: OpenQueue
) -> None:
    diary = Diary(backend.open())
    queue = open_queue(diary)
    ended = threading.Event()
    queue.subscribe(TOPIC, GROUP, lambda _: ended.set(), **MINUTE)
    queue.publish(*messages(1))
    assert ended.wait(DEADLINE)
    (entry,) = diary.wait("ack")
    assert len(entry.args[0]) == 1


def test_a_subscription_holds_no_more_than_it_runs(open_queue: OpenQueue) -> None:
    """What it does not run, another one gets: nothing waits in a queue of a busy process."""
    busy, idle = open_queue(), open_queue()
    with Gate() as gate:
        busy.subscribe(TOPIC, GROUP, gate, **FAST, concurrency=2, batch_size=32)
        busy.publish(*messages(10))
        gate.wait(2)
        rest = Inbox()
        idle.subscribe(TOPIC, GROUP, rest, **FAST)
        rest.wait(8)
        assert set(gate.ids).isdisjoint(rest.ids)
