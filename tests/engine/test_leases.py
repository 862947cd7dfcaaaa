"""Leases: renewed while a handler runs, lost only when they are, and never held for ever."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from queue_lib import (
    Claimed,
    ClaimRequest,
    Delivery,
    Permanent,
    StartFrom,
    Stats,
    StoreError,
)
from queue_lib.engine.queue import StoreQueue
from queue_lib.engine.settle import MAX_ERROR_BYTES
from queue_lib.testing.faults import FaultyStore, PausingStore
from tests.engine.conftest import OpenQueue
from tests.engine.harness import (
    DEADLINE,
    FAST,
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


def stay(seconds: float) -> Callable[[Delivery], None]:
    """Make a handler that takes its time, and notices when it is cancelled."""

    def handle(delivery: Delivery) -> None:
        assert not delivery.cancelled.wait(seconds), delivery.cancel_reason

    return handle


def test_a_handler_of_four_leases_runs_once_beside_another_instance(
    backend: Backend, open_queue: OpenQueue
) -> None:
    inbox = Inbox(then=stay(4 * backend.lease))
    queues = [open_queue(), open_queue()]
    for queue in queues:
        queue.subscribe(TOPIC, GROUP, inbox, **FAST, lease_duration=backend.lease)
    queues[0].publish(*messages(1))
    inbox.wait()
    eventually(lambda: queues[0].stats(TOPIC, GROUP) == Stats())
    assert inbox.attempts == [1]


def test_a_handler_that_keeps_the_interpreter_busy_keeps_its_lease(queue: StoreQueue) -> None:
    lease = 1.0  # each statement of a heartbeat asks for the interpreter a dozen times

    def spin(_: Delivery) -> None:
        end = time.monotonic() + 2 * lease
        while time.monotonic() < end:
            sum(range(1000))

    inbox = Inbox(then=spin)
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, lease_duration=lease, concurrency=2)
    queue.publish(*messages(2))
    inbox.wait(2)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    assert inbox.attempts == [1] * 2


def test_a_heartbeat_that_could_not_run_in_time_says_so(
    backend: Backend, queue: StoreQueue, caplog: pytest.LogCaptureFixture
) -> None:
    def keep_the_interpreter_s_lock(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            ctypes.PyDLL(None).usleep(int(1.5 * backend.lease * 1e6))

    inbox = Inbox(then=keep_the_interpreter_s_lock)
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, lease_duration=backend.lease)
    queue.publish(*messages(1))
    eventually(lambda: "s late, of a lease of" in caplog.text)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    assert inbox.attempts in ([1], [1, 2])  # nobody else may have noticed


@pytest.mark.parametrize("outcome", ["returns", "raises"])
def test_a_lost_lease_cancels_the_run_and_drops_its_outcome(
    backend: Backend, open_queue: OpenQueue, outcome: str
) -> None:
    diary = Diary(backend.open())
    pausing = PausingStore(diary)
    here, there = open_queue(pausing), open_queue()
    reasons: list[str | None] = []

    def handle(delivery: Delivery) -> None:
        delivery.cancelled.wait(DEADLINE)
        reasons.append(delivery.cancel_reason)
        if outcome == "raises":
            raise ValueError

    slow, elsewhere = Inbox(then=handle), Inbox()
    with pausing.pause_on("extend") as pause:  # a heartbeat that is stuck for longer than a lease
        here.subscribe(TOPIC, GROUP, slow, **FAST, lease_duration=backend.lease, concurrency=1)
        here.publish(*messages(1))
        pause.wait_reached()
        there.subscribe(TOPIC, GROUP, elsewhere, **FAST, lease_duration=backend.lease)
        (delivery,) = elsewhere.wait()
        assert delivery.attempt == 2
        eventually(lambda: there.stats(TOPIC, GROUP) == Stats())
    here.close()
    assert reasons == ["lease lost"]
    assert diary.of("ack") == diary.of("retry") == diary.of("kill") == []
    assert there.stats(TOPIC, GROUP) == Stats()
    assert len(slow.deliveries) == len(elsewhere.deliveries) == 1


@pytest.mark.parametrize("outcome", ["ack", "retry", "kill", "copy"])
def test_an_outcome_that_comes_too_late_changes_nothing(
    backend: Backend, open_queue: OpenQueue, outcome: str
) -> None:
    """The handler ends before the heartbeat finds out: the store refuses by the token."""
    diary = Diary(backend.open())
    pausing = PausingStore(diary)
    here, there = open_queue(pausing), open_queue()

    def end(_: Delivery) -> None:
        if outcome == "retry":
            raise ValueError
        if outcome != "ack":
            raise Permanent

    dead = "dead" if outcome == "copy" else None
    with Gate(then=end) as slow, Gate() as elsewhere, pausing.pause_on("extend") as pause:
        here.subscribe(
            TOPIC, GROUP, slow, **FAST,
            lease_duration=backend.lease, concurrency=1, dead_letter_topic=dead,
        )  # fmt: skip
        here.publish(*messages(1))
        pause.wait_reached()
        there.subscribe(TOPIC, GROUP, elsewhere, **FAST, lease_duration=backend.lease)
        elsewhere.wait()
        slow.open()
        (refused,) = diary.wait("extend" if outcome == "copy" else outcome)
        assert not refused.answer
        eventually(lambda: here.health().subscriptions[0].held == 0)
        assert there.stats(TOPIC, GROUP) == Stats(leased=1)
        assert len(diary.of("append")) == 1  # no copy
        elsewhere.open()
        eventually(lambda: there.stats(TOPIC, GROUP) == Stats())


@pytest.mark.parametrize("heartbeat", [1, 5], ids=["first", "later"])
def test_one_failing_heartbeat_loses_nothing(
    backend: Backend, open_queue: OpenQueue, heartbeat: int
) -> None:
    diary = Diary(backend.open())
    store = FaultyStore(diary)
    queue = open_queue(store)
    inbox = Inbox(then=stay(3 * backend.lease))
    store.fail_on(
        "extend", StoreError("broken"), when=lambda *_: len(diary.of("extend")) == heartbeat - 1
    )
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, lease_duration=backend.lease)
    queue.publish(*messages(1))
    inbox.wait()
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    assert store.raised["extend"] == 1
    assert inbox.attempts == [1]


def test_a_run_that_cannot_be_settled_at_all_is_let_go(
    backend: Backend, open_queue: OpenQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """Here a row that somebody damaged: no outcome can be made of it."""

    class Damaged(Diary):
        def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
            answer = super().call(method, *args, **kwargs)
            if method == "claim":
                for claim in answer:
                    claim.last_error = "\x1edamaged" if claim.attempt == 1 else ""
            return answer

    queue = open_queue(Damaged(backend.open()))
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, lease_duration=backend.lease, concurrency=1)
    queue.publish(*messages(1))
    inbox.wait()
    assert inbox.attempts == [2]
    assert "Traceback" in caplog.text


def test_failing_heartbeats_lose_the_lease_at_its_confirmed_end_and_not_before(
    backend: Backend, open_queue: OpenQueue
) -> None:
    diary = Diary(backend.open())
    store = FaultyStore(diary)
    queue = open_queue(store)
    lost: list[float] = []

    def handle(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            assert delivery.cancelled.wait(DEADLINE)
            assert delivery.cancel_reason == "lease lost"
            lost.append(time.monotonic())
            store.heal()

    inbox = Inbox(then=handle)
    store.fail_on("extend", times=None)
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, lease_duration=backend.lease, concurrency=1)
    queue.publish(*messages(1))
    inbox.wait(2)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    claim = next(entry for entry in diary.of("claim") if entry.answer)
    assert claim.began + backend.lease <= lost[0] < claim.ended + 3 * backend.lease
    assert inbox.attempts == [1, 2]


@pytest.mark.parametrize("applied", [False, True], ids=["not applied", "answer lost"])
@pytest.mark.parametrize("error", [None, StoreError("broken")], ids=["passing", "other"])
def test_a_failing_acknowledgement_is_tried_again(
    backend: Backend, open_queue: OpenQueue, applied: bool, error: StoreError | None
) -> None:
    store = FaultyStore(backend.open())
    queue = open_queue(store)
    inbox = Inbox()
    store.fail_on("ack", error, times=2, applied=applied)
    queue.subscribe(TOPIC, GROUP, inbox, **FAST)
    queue.publish(*messages(3))
    eventually(lambda: store.raised["ack"] == 2)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    queue.close()
    assert inbox.attempts == [1] * 3


@pytest.mark.parametrize("method", ["ack", "retry"])
def test_what_cannot_be_settled_is_not_held_for_ever_by_a_live_process(
    backend: Backend, open_queue: OpenQueue, method: str
) -> None:
    store = FaultyStore(backend.open())
    queue = open_queue(store)

    def handle(delivery: Delivery) -> None:
        if delivery.attempt > 1:
            store.heal()
        elif method == "retry":
            raise ValueError

    inbox = Inbox(then=handle)
    store.fail_on(method, times=None)
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, lease_duration=backend.lease, concurrency=1)
    queue.publish(*messages(1))
    inbox.wait(2)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    assert inbox.attempts == [1, 2]


def test_a_death_that_cannot_be_recorded_is_recorded_later_and_the_handler_not_run_again(
    backend: Backend, open_queue: OpenQueue
) -> None:
    diary = Diary(backend.open())
    store = FaultyStore(diary)
    queue = open_queue(store)

    def handle(_: Delivery) -> None:
        raise ValueError

    inbox = Inbox(then=handle)
    store.fail_on("kill", times=None)
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, lease_duration=backend.lease, max_attempts=1)
    queue.publish(*messages(1))
    eventually(lambda: sum(len(entry.answer) for entry in diary.of("claim")) == 2)
    store.heal()
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats(dead=1))
    assert inbox.attempts == [1]


@pytest.mark.parametrize("method", ["retry", "kill"])
def test_a_failing_outcome_of_a_failure_is_tried_again(
    backend: Backend, open_queue: OpenQueue, method: str
) -> None:
    store = FaultyStore(backend.open())
    queue = open_queue(store)

    def handle(_: Delivery) -> None:
        raise ValueError

    inbox = Inbox(then=handle)
    store.fail_on(method, times=2)
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, max_attempts=2)
    queue.publish(*messages(1))
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats(dead=1))
    assert store.raised[method] == 2
    assert inbox.attempts == [1, 2]


def test_other_handlers_go_on_while_an_outcome_cannot_be_written(
    backend: Backend, open_queue: OpenQueue
) -> None:
    store = FaultyStore(backend.open())
    queue = open_queue(store)

    def handle(delivery: Delivery) -> None:
        if delivery.key == "bad":
            raise ValueError

    inbox = Inbox(then=handle)
    store.fail_on("retry", times=None)
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, concurrency=2)
    queue.publish(*messages(1, key="bad"))
    eventually(lambda: store.raised["retry"])
    queue.publish(*messages(20, start=1))
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats(leased=1))
    store.heal()


def test_leases_that_ran_out_spend_attempts_and_the_last_one_is_fatal(
    backend: Backend, open_queue: OpenQueue
) -> None:
    """What processes leave behind that die with their message, again and again."""
    queue, store = open_queue(), backend.open()
    dead, inbox = Inbox(), Inbox()
    queue.subscribe("dead", GROUP, dead, **FAST)
    store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    queue.publish(*messages(1))
    request = ClaimRequest(TOPIC, GROUP, "gone", 1, timedelta(milliseconds=50))
    for attempt in (1, 2, 3):
        claims: list[Claimed] = []
        while not claims:
            claims = store.claim(request)
        assert claims[0].attempt == attempt
        if attempt == 1:
            store.retry(claims[0], timedelta(0), "x" * MAX_ERROR_BYTES)
    store.close()
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, max_attempts=3, dead_letter_topic="dead")
    (copy,) = dead.wait()
    assert copy.headers is not None
    error = copy.headers["x-queue-dlq-error"]
    said = "attempt 3 ended without an outcome: its lease expired; before that: xxx"
    assert error.startswith(said)
    assert len(error) == MAX_ERROR_BYTES
    assert copy.headers["x-queue-dlq-attempts"] == "3"
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats(dead=1))
    assert inbox.deliveries == []
