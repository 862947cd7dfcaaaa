"""Handlers that fail: attempts, verdicts, every kind of exception, every kind of error text."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest

from queue_lib import Delivery, Permanent, Stats
from queue_lib.engine.queue import StoreQueue
from queue_lib.engine.settle import MAX_ERROR_BYTES
from queue_lib.testing.faults import FaultyStore
from tests.engine.conftest import OpenQueue
from tests.engine.harness import (
    DEADLINE,
    FAST,
    GROUP,
    TOPIC,
    Backend,
    Diary,
    Inbox,
    eventually,
    messages,
)


class OddError(BaseException):
    """Not even an `Exception`."""


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text for you")


class ExitingError(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


class TextlessError(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]


class UnspeakableMeta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise ValueError("no name for you")


class UnspeakableError(Exception, metaclass=UnspeakableMeta):
    """Its class does not tell its name."""


class CauselessError(Exception):
    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise ValueError("no cause for you")


def raises(error: BaseException | type[BaseException]) -> Callable[[Delivery], None]:
    def handle(_: Delivery) -> None:
        raise error

    return handle


def raise_from_permanent(_: Delivery) -> None:
    raise RuntimeError("wrapped") from Permanent("never")


def raise_deep_from_permanent(_: Delivery) -> None:
    try:
        raise_from_permanent(_)
    except RuntimeError as error:
        raise ValueError("wrapped twice") from error


def raise_group_with_permanent(_: Delivery) -> None:
    raise ExceptionGroup("several", [ValueError("one"), Permanent("two")])


def raise_while_handling_permanent(_: Delivery) -> None:
    try:
        raises(Permanent)(_)
    except Permanent:
        raise ValueError("another")  # noqa: B904 - merely its context


def test_a_failing_message_is_tried_max_attempts_times_and_then_is_dead(queue: StoreQueue) -> None:
    inbox = Inbox(then=raises(ValueError))
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, max_attempts=4)
    queue.publish(*messages(1))
    inbox.wait(4)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats(dead=1))
    assert inbox.attempts == [1, 2, 3, 4]
    assert len({delivery.delivery_id for delivery in inbox.deliveries}) == 1


def test_a_success_after_failures_acknowledges(queue: StoreQueue) -> None:
    def handle(delivery: Delivery) -> None:
        if delivery.attempt < 3:
            raise ValueError

    inbox = Inbox(then=handle)
    queue.subscribe(TOPIC, GROUP, inbox, **FAST)
    queue.publish(*messages(1))
    inbox.wait(3)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    assert inbox.attempts == [1, 2, 3]


@pytest.mark.parametrize(
    "handle",
    [
        raises(Permanent),
        raises(Permanent("why")),
        raises(Permanent(ValueError("why"))),
        raise_from_permanent,
        raise_deep_from_permanent,
        raise_group_with_permanent,
    ],
    ids=["class", "text", "wrapping", "cause", "deep cause", "group"],
)
def test_permanent_ends_it_at_once(queue: StoreQueue, handle: Callable[[Delivery], None]) -> None:
    inbox = Inbox(then=handle)
    queue.subscribe(TOPIC, GROUP, inbox, **FAST)
    queue.publish(*messages(1))
    inbox.wait()
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats(dead=1))
    assert inbox.attempts == [1]


def test_an_error_that_merely_followed_a_permanent_one_is_tried_again(queue: StoreQueue) -> None:
    inbox = Inbox(then=raise_while_handling_permanent)
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, max_attempts=2)
    queue.publish(*messages(1))
    inbox.wait(2)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats(dead=1))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("plain"),
        SystemExit(1),
        KeyboardInterrupt(),
        GeneratorExit(),
        StopIteration(),
        asyncio.CancelledError(),
        MemoryError(),
        OddError(),
        BaseExceptionGroup("group", [SystemExit(2)]),
        UnspeakableError(),
        CauselessError(),
    ],
    ids=lambda error: type.__getattribute__(type(error), "__qualname__"),
)
def test_any_exception_is_a_failed_attempt_and_costs_no_thread(
    queue: StoreQueue, error: BaseException
) -> None:
    concurrency = 3
    together = threading.Barrier(concurrency)

    def handle(delivery: Delivery) -> None:
        if delivery.priority == 0:
            raise error
        together.wait(DEADLINE)  # broken unless the pool has kept its size

    inbox = Inbox(then=handle)
    subscription = queue.subscribe(
        TOPIC, GROUP, inbox, **FAST, max_attempts=2, concurrency=concurrency
    )
    queue.publish(*messages(2 * concurrency))
    dead = Stats(dead=2 * concurrency)
    eventually(lambda: queue.stats(TOPIC, GROUP) == dead)
    assert sorted(inbox.attempts) == [1] * 2 * concurrency + [2] * 2 * concurrency
    queue.publish(*messages(concurrency, start=100, priority=1))
    inbox.wait(5 * concurrency)
    assert subscription.close(DEADLINE) is True
    assert queue.stats(TOPIC, GROUP) == dead


class Refusing(logging.Handler):
    """What a host may have: a request id filter, say, that raises outside of a request."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise RuntimeError("working outside of a request")


def test_a_log_handler_that_raises_changes_no_outcome(backend: Backend, open_queue: OpenQueue):
    store = FaultyStore(backend.open())
    queue = open_queue(store)
    logger, handler = logging.getLogger("queue_lib"), Refusing()
    logger.addHandler(handler)
    try:
        inbox = Inbox(then=raises(ValueError("ordinary")))
        subscription = queue.subscribe(TOPIC, GROUP, inbox, **FAST, max_attempts=2, concurrency=1)
        store.fail_on("claim")
        store.fail_on("ack")
        queue.publish(*messages(3))
        inbox.wait(6)
        eventually(lambda: queue.stats(TOPIC, GROUP) == Stats(dead=3))
        eventually(lambda: queue.health().ok)
        assert subscription.close(DEADLINE) is True
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize(
    ("error", "start"),
    [
        (ValueError("a\0b"), "ValueError: a\N{REPLACEMENT CHARACTER}b"),
        (ValueError("\ud800\udfff"), "ValueError: ??"),
        (ValueError("x" * 5_000_000), "ValueError: xxx"),
        (ValueError("\N{COLLISION SYMBOL}" * 1_250_000), "ValueError: \N{COLLISION SYMBOL}"),
        (ValueError(), "ValueError"),
        (ValueError("\x1e3\x1eforged"), "ValueError:  3 forged"),
        (Permanent("why"), "Permanent: why"),
        (Permanent(ValueError("inner")), "ValueError: inner"),
        (UnreadableError(), "UnreadableError: ("),
        (ExitingError(), "ExitingError: ("),
        (TextlessError(), "TextlessError: ("),
        (UnspeakableError("why"), "Exception: ("),
        (CauselessError("why"), "CauselessError: why"),
    ],
    ids=[
        "NUL", "surrogates", "5 MB", "5 MB of wide characters", "empty", "separators", "Permanent",
        "wrapped", "unreadable", "exiting", "not a text", "nameless", "causeless",
    ],
)  # fmt: skip
def test_the_text_of_any_error_is_stored(
    backend: Backend,
    open_queue: OpenQueue,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
    start: str,
) -> None:
    caplog.set_level(logging.CRITICAL, "queue_lib")  # not every text can be sent to a test runner
    diary = Diary(backend.open())
    queue = open_queue(diary)
    inbox, dead = Inbox(then=raises(error)), Inbox()
    queue.subscribe("dead", GROUP, dead, **FAST)
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, max_attempts=2, dead_letter_topic="dead")
    queue.publish(*messages(1))
    (copy,) = dead.wait()
    assert copy.headers is not None
    text = copy.headers["x-queue-dlq-error"]
    assert text.startswith(start)
    assert len(text.encode()) <= MAX_ERROR_BYTES
    if len(text.encode()) < MAX_ERROR_BYTES - 4:
        assert len(text) < 100  # only what was too long was cut
    (kill,) = diary.wait("kill")
    assert kill.args[1] == text
    if not isinstance(error, Permanent):
        assert inbox.attempts == [1, 2]
        again = [
            claim for entry in diary.of("claim") for claim in entry.answer if claim.attempt == 2
        ]
        assert [claim.last_error for claim in again] == [text]  # as it came back from the store
