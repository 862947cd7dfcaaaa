"""Closing: what it waits for, what it cancels, what it gives back, and who may call it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from queue_lib import (
    Delivery,
    EngineConfig,
    Message,
    QueueClosedError,
    Stats,
    Subscription,
)
from queue_lib.engine.queue import StoreQueue
from queue_lib.engine.subscription import GRACE
from queue_lib.testing.conformance.case import together
from queue_lib.testing.faults import FaultyStore, PausingStore
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
    await_closer,
    eventually,
    in_thread,
    messages,
)

Closer = Callable[[StoreQueue, Subscription, float | None], bool]

CLOSERS: dict[str, Closer] = {
    "subscription": lambda _, subscription, timeout: subscription.close(timeout),
    "queue": lambda queue, _, timeout: queue.close(timeout),
}

each_closer = pytest.mark.parametrize("close", CLOSERS.values(), ids=CLOSERS)


@each_closer
def test_a_close_waits_for_the_handlers_and_their_acknowledgements(
    open_queue: OpenQueue, close: Closer
) -> None:
    queue, order = open_queue(), list[object]()
    with Gate(then=lambda _: order.append("handled")) as gate:
        subscription = queue.subscribe(TOPIC, GROUP, gate, **FAST, concurrency=2)
        queue.publish(*messages(5))
        gate.wait(2)
        with in_thread(lambda: order.append(close(queue, subscription, None))):
            await_closer(subscription)
            gate.let_pass(2)
    assert order == ["handled", "handled", True]
    assert open_queue().stats(TOPIC, GROUP) == Stats(pending=3)


def test_a_handler_may_publish_while_its_queue_waits_for_it(open_queue: OpenQueue) -> None:
    queue = open_queue()
    with Gate(then=lambda _: queue.publish(Message("next"))) as gate:
        subscription = queue.subscribe(TOPIC, GROUP, gate, **FAST)
        queue.subscribe("next", GROUP, Inbox()).close()
        queue.publish(*messages(1))
        gate.wait()
        with in_thread(queue.close):
            await_closer(subscription)
            with pytest.raises(QueueClosedError):
                queue.subscribe(TOPIC, GROUP, Inbox())
            gate.open()
    assert open_queue().stats("next", GROUP) == Stats(pending=1)
    assert open_queue().stats(TOPIC, GROUP) == Stats()


@pytest.mark.slow
@each_closer
@pytest.mark.parametrize("outcome", ["returns", "raises"])
def test_at_its_deadline_a_close_cancels_and_gives_back_what_runs(
    backend: Backend, open_queue: OpenQueue, close: Closer, outcome: str
) -> None:
    diary = Diary(backend.open())
    here, there = open_queue(diary), open_queue()

    def end(_: Delivery) -> None:
        if outcome == "raises":
            raise ValueError

    with Gate(then=end) as stubborn, Gate() as elsewhere:
        subscription = here.subscribe(TOPIC, GROUP, stubborn, **MINUTE)
        here.publish(*messages(1))
        (delivery,) = stubborn.wait()
        began = time.monotonic()
        assert close(here, subscription, 0.2) is False
        assert 0.2 <= time.monotonic() - began < 0.2 + GRACE + 0.5
        assert delivery.cancelled.is_set()
        assert delivery.cancel_reason == "closed"
        there.subscribe(TOPIC, GROUP, elsewhere, **MINUTE)
        (again,) = elsewhere.wait()  # at once: neither a lease nor a poll was waited for
        assert again.attempt == 1
        stubborn.open()
        stubborn.wait_left()
        assert subscription.close(DEADLINE) is True  # now they have all ended
        assert there.stats(TOPIC, GROUP) == Stats(leased=1)
        assert diary.of("ack") == diary.of("retry") == diary.of("kill") == []
        elsewhere.open()
        eventually(lambda: there.stats(TOPIC, GROUP) == Stats())


def test_a_handler_that_heeds_the_cancellation_ends_in_good_time(queue: StoreQueue) -> None:
    inbox = Inbox(then=lambda delivery: delivery.cancelled.wait(DEADLINE))
    subscription = queue.subscribe(TOPIC, GROUP, inbox, **FAST)
    queue.publish(*messages(1))
    inbox.wait()
    assert subscription.close(timeout=0) is False
    assert subscription.close(timeout=DEADLINE) is True
    assert queue.stats(TOPIC, GROUP) == Stats(pending=1)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("moment", ["waits", "has returned"])
def test_what_a_claim_brings_after_the_close_began_is_given_back_unstarted(
    backend: Backend, open_queue: OpenQueue, moment: str, count: int
) -> None:
    pausing = PausingStore(backend.open())
    queue, other = open_queue(pausing), open_queue()
    inbox, elsewhere = Inbox(), Inbox()
    other.subscribe(TOPIC, GROUP, Inbox()).close()
    other.publish(*messages(count))
    with pausing.pause_on("claim", applied=True) as pause:
        subscription = queue.subscribe(TOPIC, GROUP, inbox, **MINUTE)
        pause.wait_reached()
        if moment == "waits":
            subscription.begin_close()
        else:  # nothing runs, and a close does not wait for a slow store for ever
            assert subscription.close() is True
    assert subscription.close() is True
    eventually(lambda: other.stats(TOPIC, GROUP) == Stats(pending=count))
    other.subscribe(TOPIC, GROUP, elsewhere, **MINUTE)
    elsewhere.wait(count)
    assert elsewhere.attempts == [1] * count
    assert inbox.deliveries == []


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ack", "retry", "claim", "extend", "release", "purge"])
def test_a_close_returns_in_time_however_slow_the_store_is(
    backend: Backend, open_queue: OpenQueue, method: str
) -> None:
    pausing = PausingStore(backend.open())
    config = EngineConfig(janitor_interval=0.01)
    queue = open_queue(pausing, config)

    def handle(_: Delivery) -> None:
        if method == "retry":
            raise ValueError
        if method in {"extend", "release"}:
            left.wait(DEADLINE)

    left = threading.Event()
    with pausing.pause_on(method) as pause:
        queue.subscribe(TOPIC, GROUP, handle, **FAST, lease_duration=backend.lease)
        queue.publish(*messages(1))
        if method != "release":
            pause.wait_reached()
        began = time.monotonic()
        queue.close(timeout=0.1)
        assert time.monotonic() - began < 0.1 + GRACE + 0.5
        left.set()


@pytest.mark.slow
def test_the_store_is_closed_when_the_last_statement_has_ended_and_not_under_it(
    backend: Backend, open_queue: OpenQueue
) -> None:
    diary = Diary(backend.open())
    pausing = PausingStore(diary)
    queue, other = open_queue(pausing), open_queue()
    other.subscribe(TOPIC, GROUP, Inbox()).close()
    other.publish(*messages(1))
    with pausing.pause_on("claim", applied=True) as pause:
        queue.subscribe(TOPIC, GROUP, Inbox(), **MINUTE)
        pause.wait_reached()
        assert queue.close() is True
        with pytest.raises(QueueClosedError):
            queue.ping()
        assert diary.of("close") == []
    diary.wait("close")
    assert other.stats(TOPIC, GROUP) == Stats(pending=1)  # it could still be given back


@pytest.mark.parametrize("method", ["ack", "retry", "kill"])
def test_after_its_deadline_a_close_gives_up_what_cannot_be_written(
    backend: Backend, open_queue: OpenQueue, method: str
) -> None:
    store = FaultyStore(backend.open())
    queue = open_queue(store)

    def handle(_: Delivery) -> None:
        if method != "ack":
            raise ValueError

    store.fail_on(method, times=None)
    attempts = 1 if method == "kill" else 2
    subscription = queue.subscribe(TOPIC, GROUP, handle, **FAST, max_attempts=attempts)
    queue.publish(*messages(1))
    eventually(lambda: store.raised[method] > 1)
    assert subscription.close(timeout=0) is False
    eventually(lambda: subscription.ended)  # though the lease would hold for half a minute


def test_a_fault_while_closing_does_not_keep_it(backend: Backend, open_queue: OpenQueue) -> None:
    store = FaultyStore(backend.open())
    queue = open_queue(store)
    inbox = Inbox(then=lambda delivery: delivery.cancelled.wait(DEADLINE))
    subscription = queue.subscribe(TOPIC, GROUP, inbox, **FAST)
    store.fail_on("release", times=None)
    queue.publish(*messages(1))
    inbox.wait()
    assert subscription.close(timeout=0.05) is False
    assert subscription.close() is True
    eventually(lambda: store.raised["release"])


@each_closer
def test_anybody_may_close_at_any_time_and_again(queue: StoreQueue, close: Closer) -> None:
    with Gate() as gate:
        subscription = queue.subscribe(TOPIC, GROUP, gate, **FAST)
        queue.publish(*messages(4))
        gate.wait(4)
        answers: list[list[bool]] = []
        with in_thread(
            lambda: answers.append(together(8, lambda _: close(queue, subscription, None)))
        ):
            await_closer(subscription)
            gate.open()
    assert answers == [[True] * 8]
    assert close(queue, subscription, 0) is True
    assert close(queue, subscription, DEADLINE) is True


def test_a_close_ends_one_subscription_and_leaves_the_others(queue: StoreQueue) -> None:
    first, second, third = Inbox(), Inbox(), Inbox()
    closed = queue.subscribe(TOPIC, "one", first, **FAST)
    queue.subscribe(TOPIC, "two", second, **FAST)
    closed.close()
    queue.publish(*messages(1))
    second.wait()
    queue.subscribe(TOPIC, "one", third, **FAST)
    third.wait()
    assert first.deliveries == []
    assert [s.group for s in queue.health().subscriptions] == ["two", "one"]


# -- from a handler --------------------------------------------------------------------------


@each_closer
@pytest.mark.parametrize("handlers", [1, 2, 4])
def test_handlers_may_close_what_runs_them_and_are_acknowledged(
    open_queue: OpenQueue, close: Closer, handlers: int
) -> None:
    queue, watcher = open_queue(), open_queue()
    here = threading.Barrier(handlers)
    answers: list[bool] = []
    box: list[Any] = []

    def handle(_: Delivery) -> None:
        here.wait(DEADLINE)
        answers.append(close(queue, box[0], None))

    queue.subscribe(TOPIC, GROUP, Inbox()).close()
    queue.publish(*messages(handlers))
    box.append(queue.subscribe(TOPIC, GROUP, handle, **FAST))
    eventually(lambda: watcher.stats(TOPIC, GROUP) == Stats())
    eventually(lambda: box[0].ended)
    assert answers == [False] * handlers  # they had not ended
    assert close(queue, box[0], 0) is True


def test_a_handler_that_closes_waits_for_the_others(queue: StoreQueue) -> None:
    order: list[str] = []
    box: list[Any] = []

    def handle(delivery: Delivery) -> None:
        if delivery.priority:
            box[0].close()
            order.append("closed")

    with Gate(then=lambda _: order.append("handled")) as gate:
        subscription = queue.subscribe(
            TOPIC, GROUP, lambda d: handle(d) if d.priority else gate(d), **FAST
        )
        box.append(subscription)
        queue.publish(*messages(1))
        gate.wait()
        queue.publish(*messages(1, start=1, priority=1))
        await_closer(subscription)
        gate.open()
        eventually(lambda: subscription.ended)
    assert order == ["handled", "closed"]


def test_others_wait_for_a_handler_that_closed(queue: StoreQueue) -> None:
    """It may have more to do after its own close returned."""
    order: list[str] = []
    box: list[Any] = []
    with Gate(then=lambda _: order.append("handled")) as gate:

        def handle(delivery: Delivery) -> None:
            box[0].close()
            gate(delivery)

        box.append(queue.subscribe(TOPIC, GROUP, handle, **FAST))
        queue.publish(*messages(1))
        gate.wait()
        with in_thread(lambda: order.append(f"closed {box[0].close()}")):
            await_closer(box[0])
            gate.open()
    assert order == ["handled", "closed True"]


@pytest.mark.slow
def test_handlers_of_two_subscriptions_may_close_their_queue_at_once(
    open_queue: OpenQueue,
) -> None:
    queue, watcher = open_queue(), open_queue()
    here = threading.Barrier(2)

    def handle(_: Delivery) -> None:
        here.wait(DEADLINE)
        queue.close()

    subscriptions = [queue.subscribe(TOPIC, group, handle, **FAST) for group in ("one", "two")]
    queue.publish(*messages(1))
    eventually(lambda: all(subscription.ended for subscription in subscriptions))
    assert watcher.stats(TOPIC, "one") == watcher.stats(TOPIC, "two") == Stats()


@pytest.mark.slow
def test_a_handler_s_close_has_a_deadline_like_any_other(queue: StoreQueue) -> None:
    box: list[Any] = []
    answers: list[bool] = []
    with Gate() as gate:

        def handle(delivery: Delivery) -> None:
            if not delivery.priority:
                gate(delivery)
                return
            answers.append(box[0].close(timeout=0.1))

        subscription = queue.subscribe(TOPIC, GROUP, handle, **FAST)
        box.append(subscription)
        queue.publish(*messages(1))
        gate.wait()
        queue.publish(*messages(1, start=1, priority=1))
        eventually(lambda: subscription.ended)
    assert answers == [False]
    assert queue.stats(TOPIC, GROUP) == Stats(pending=2)
