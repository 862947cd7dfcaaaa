"""Subscribing and closing as calls: what is refused, in which order, and what is left behind."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from queue_lib import (
    DeadLetterLoopError,
    Delivery,
    InvalidNameError,
    InvalidOptionsError,
    LockerRequiredError,
    Message,
    QueueClosedError,
    Stats,
    Store,
    StoreError,
    SubscribeOptions,
)
from queue_lib.engine.queue import StoreQueue
from queue_lib.testing.conformance.case import together
from queue_lib.testing.faults import FaultyStore
from tests.engine.conftest import OpenQueue
from tests.engine.harness import (
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


class LockerlessStore(Diary):
    """A store that cannot consume."""

    def can_consume(self) -> None:
        self.asked = True
        raise LockerRequiredError("consuming needs a locker")


async def coroutine_handler(_: Delivery) -> None:
    raise AssertionError("never runs")


def generator_handler(_: Delivery) -> Iterator[None]:
    raise AssertionError("never runs")
    yield


async def stream_handler(_: Delivery) -> AsyncIterator[None]:
    raise AssertionError("never runs")
    yield


@pytest.mark.parametrize(
    ("topic", "group", "handler", "fields", "error"),
    [
        ("a topic", GROUP, print, {}, InvalidNameError),
        (TOPIC, "a/group", print, {}, InvalidNameError),
        (TOPIC, GROUP, print, {"concurrency": 0}, InvalidOptionsError),
        (TOPIC, GROUP, print, {"no_such_option": 1}, InvalidOptionsError),
        (TOPIC, GROUP, print, {"options": {"concurrency": 1}}, InvalidOptionsError),
        (
            TOPIC,
            GROUP,
            print,
            {"options": SubscribeOptions(), "concurrency": 1},
            InvalidOptionsError,
        ),
        (TOPIC, GROUP, print, {"dead_letter_topic": "not a topic"}, InvalidNameError),
        (TOPIC, GROUP, print, {"dead_letter_topic": TOPIC}, DeadLetterLoopError),
        (TOPIC, GROUP, "no handler", {}, InvalidOptionsError),
        (TOPIC, GROUP, coroutine_handler, {}, InvalidOptionsError),
        (TOPIC, GROUP, print, {}, LockerRequiredError),
    ],
)
def test_a_refused_subscription_registers_nothing_and_starts_nothing(
    backend: Backend,
    open_queue: OpenQueue,
    topic: str,
    group: str,
    handler: Any,
    fields: dict[str, Any],
    error: type[Exception],
) -> None:
    store = LockerlessStore(backend.open())
    queue = open_queue(store)
    with pytest.raises(error):
        queue.subscribe(topic, group, handler, **fields)
    assert store.of("ensure_group") == store.of("claim") == []
    assert queue.health().subscriptions == ()
    # What the caller can mend in the call is said first.
    assert hasattr(store, "asked") is (error is LockerRequiredError)


def test_a_subscription_that_cannot_register_starts_nothing(
    backend: Backend, open_queue: OpenQueue
) -> None:
    store = FaultyStore(backend.open())
    queue = open_queue(store)
    store.fail_on("ensure_group", StoreError("broken"))
    with pytest.raises(StoreError, match="broken"):
        queue.subscribe(TOPIC, GROUP, Inbox())
    assert queue.health().subscriptions == ()
    store.fail_on("ensure_group", times=2)  # may pass: is tried again
    queue.subscribe(TOPIC, GROUP, Inbox())
    assert store.raised["ensure_group"] == 3


def test_options_are_given_as_one_object_or_as_keywords(queue: StoreQueue) -> None:
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, inbox, SubscribeOptions(**FAST))
    queue.subscribe(TOPIC, "audit", inbox, **FAST)
    queue.publish(*messages(1))
    inbox.wait(2)


def test_the_decorator_subscribes_and_leaves_the_function_as_it_was(queue: StoreQueue) -> None:
    inbox = Inbox()

    @queue.subscriber(TOPIC, GROUP, **FAST)
    def handle(delivery: Delivery) -> str:
        inbox(delivery)
        return "handled"

    queue.publish(*messages(1))
    (delivery,) = inbox.wait()
    assert handle(delivery) == "handled"


@pytest.mark.parametrize("handler", [coroutine_handler, generator_handler, stream_handler])
def test_a_handler_that_returns_what_has_not_run_fails(
    queue: StoreQueue, handler: Callable[[Delivery], object]
) -> None:
    """It did nothing yet: acknowledging it would lose the message without a word."""
    inbox = Inbox(then=handler)  # not a coroutine function itself
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, max_attempts=2)
    queue.publish(*messages(1))
    inbox.wait(2)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats(dead=1))


def test_leaving_the_context_waits_for_the_handlers(open_queue: OpenQueue) -> None:
    queue, order = open_queue(), list[str]()
    with Gate(then=lambda _: order.append("handled")) as gate:
        subscription = queue.subscribe(TOPIC, GROUP, gate, **FAST)
        queue.publish(*messages(1))
        gate.wait()

        def leave() -> None:
            with queue:
                pass
            order.append("left")

        with in_thread(leave):
            await_closer(subscription)
            gate.open()
    assert order == ["handled", "left"]
    assert open_queue().stats(TOPIC, GROUP) == Stats()


CALLS: dict[str, Callable[[StoreQueue], object]] = {
    "publish": lambda queue: queue.publish(Message(TOPIC)),
    "publish nothing": lambda queue: queue.publish(),
    "publish nonsense": lambda queue: queue.publish(Message("not a topic")),
    "publish in a transaction": lambda queue: queue.publish(Message(TOPIC), connection=object()),
    "subscribe": lambda queue: queue.subscribe(TOPIC, GROUP, print),
    "subscriber": lambda queue: queue.subscriber(TOPIC, GROUP)(print),
    "stats": lambda queue: queue.stats(TOPIC, GROUP),
    "group_stats": lambda queue: queue.group_stats(TOPIC, GROUP),
    "ping": lambda queue: queue.ping(),
    "health": lambda queue: queue.health(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_closed_queue_refuses_everything(
    queue: StoreQueue, call: Callable[[StoreQueue], object]
) -> None:
    subscription = queue.subscribe(TOPIC, GROUP, Inbox(), **MINUTE)
    assert queue.close() is True
    with pytest.raises(QueueClosedError):
        call(queue)
    assert queue.close() is True
    assert subscription.close() is True


def test_signals_stay_the_application_s(queue: StoreQueue) -> None:
    before = [signal.getsignal(number) for number in signal.valid_signals()]
    together(1, lambda _: queue.subscribe(TOPIC, GROUP, Inbox(), **FAST).close())
    queue.subscribe(TOPIC, GROUP, Inbox(), **FAST)
    queue.close()
    assert [signal.getsignal(number) for number in signal.valid_signals()] == before


def test_a_queue_owns_the_store_that_it_was_given(backend: Backend, open_queue: OpenQueue) -> None:
    store = Diary(backend.open())
    open_queue(store).close()
    assert len(store.of("close")) == 1


def test_a_store_is_found_out_by_its_methods(backend: Backend) -> None:
    assert isinstance(backend.open(), Store)
