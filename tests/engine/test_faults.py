"""Faults of the store: what is tried again, how often, and that consuming outlives all of them."""

from __future__ import annotations

import itertools
import threading

import pytest

from queue_lib import (
    Message,
    StartFrom,
    Stats,
    StoreError,
    StoreUnavailableError,
    TransactionalStore,
    WakeSource,
)
from queue_lib.stores.base import AckingClaimer
from queue_lib.stores.memory import MemoryStore
from queue_lib.testing.faults import FaultyStore, PausingStore
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
    in_thread,
    messages,
)

PAUSES = [0.1, 0.2, 0.4]


# -- publishing ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("faults", [1, 3, 4])
@pytest.mark.parametrize("applied", [False, True], ids=["not applied", "answer lost"])
def test_a_passing_fault_of_a_publish_is_tried_again_three_times(
    backend: Backend, open_queue: OpenQueue, faults: int, applied: bool
) -> None:
    faulty = FaultyStore(backend.open())
    diary = Diary(faulty)
    queue = open_queue(diary)
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, inbox, **FAST)
    faulty.fail_on("append", times=faults, applied=applied)
    message = Message(TOPIC)
    if faults > len(PAUSES):
        with pytest.raises(StoreUnavailableError):
            queue.publish(message)
        queue.publish(message)  # the same object: the same id
    else:
        queue.publish(message)
    tries = diary.of("append")[: 1 + len(PAUSES)]
    assert len(tries) == min(faults, len(PAUSES)) + 1
    pauses = [after.began - before.ended for before, after in itertools.pairwise(tries)]
    for pause, least in zip(pauses, PAUSES, strict=False):
        assert least <= pause < 2 * least + 0.1
    inbox.wait()
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    assert inbox.ids == [message.id]


@pytest.mark.parametrize("error", [StoreError("broken"), ValueError("a bug")])
def test_any_other_fault_of_a_publish_is_the_caller_s_at_once(
    backend: Backend, open_queue: OpenQueue, error: Exception
) -> None:
    faulty = FaultyStore(backend.open())
    diary = Diary(faulty)
    queue = open_queue(diary)
    faulty.fail_on("append", error, times=None)
    with pytest.raises(type(error)):
        queue.publish(Message(TOPIC))
    assert len(diary.of("append")) == 1


# -- consuming -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [None, StoreError("broken"), RuntimeError("a bug")], ids=["passing", "other", "bug"]
)
def test_faults_of_claims_do_not_stop_consuming(
    backend: Backend, open_queue: OpenQueue, error: Exception | None
) -> None:
    store = FaultyStore(backend.open())
    queue = open_queue(store)
    inbox = Inbox()
    store.fail_on("claim", error, times=None)
    queue.subscribe(TOPIC, GROUP, inbox, **FAST)
    eventually(lambda: store.raised["claim"] >= 2)
    health = queue.health()
    assert not health.ok
    assert (health.subscriptions[0].error or "").startswith("claim: ")
    assert health.subscriptions[0].running
    queue.publish(*messages(1))
    store.heal()
    inbox.wait()
    eventually(lambda: queue.health().ok)


@pytest.mark.slow
def test_a_claim_whose_answer_was_lost_is_claimed_again(
    backend: Backend, open_queue: OpenQueue
) -> None:
    store = FaultyStore(backend.open())
    queue = open_queue(store)
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, Inbox()).close()
    queue.publish(*messages(1))
    store.fail_on("claim", applied=True)
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, lease_duration=backend.lease)
    inbox.wait()
    assert inbox.attempts == [2]  # nobody knows that it did not run


@pytest.mark.parametrize("applied", [False, True], ids=["not applied", "answer lost"])
def test_a_fault_of_a_joint_step_loses_neither_half(
    backend: Backend, open_queue: OpenQueue, applied: bool
) -> None:
    """What was to be acknowledged is tried again; what was claimed comes back with its lease."""
    faulty = FaultyStore(backend.open())
    if not isinstance(faulty, AckingClaimer):
        pytest.skip("this store acknowledges and claims one after the other")
    queue = open_queue(faulty)
    queue.subscribe(TOPIC, GROUP, Inbox()).close()
    faulty.fail_on("ack_and_claim", times=2, applied=applied)
    queue.publish(*messages(6, key="k"))
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, lease_duration=backend.lease, concurrency=2)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    assert faulty.raised["ack_and_claim"] == 2
    assert inbox.ids == [f"{TOPIC}-{number}" for number in range(6)]  # each once, in order
    assert max(inbox.attempts) == (2 if applied else 1)


def test_a_store_that_answers_with_a_plain_list_is_polled(
    backend: Backend, open_queue: OpenQueue
) -> None:
    class Plain(Diary):
        def call(self, method: str, *args: object, **kwargs: object) -> object:
            answer = super().call(method, *args, **kwargs)
            return list(answer) if method == "claim" else answer

    queue = open_queue(Plain(backend.open()))
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, inbox, **FAST)
    queue.publish(*messages(10))
    inbox.wait(10)


# -- the tools themselves --------------------------------------------------------------------


def test_a_wrapper_has_the_capabilities_of_its_store_and_no_others(backend: Backend) -> None:
    plain = backend.open()
    for wrapped in (FaultyStore(plain), PausingStore(plain), FaultyStore(PausingStore(plain))):
        for capability in (TransactionalStore, WakeSource):
            assert isinstance(wrapped, capability) is isinstance(plain, capability)
    plain.close()


def test_faults_are_used_up_in_order_and_forgotten_by_heal() -> None:
    store = FaultyStore(MemoryStore())
    store.fail_on("ping", ValueError("first"))
    store.fail_on("ping", KeyError("second"), times=None)
    store.fail_on("stats")
    with pytest.raises(ValueError, match="first"):
        store.ping()
    for _ in range(3):
        with pytest.raises(KeyError):
            store.ping()
    store.heal("ping")
    store.ping()
    with pytest.raises(StoreUnavailableError):
        store.stats(TOPIC, GROUP)
    store.stats(TOPIC, GROUP)
    assert store.raised == {"ping": 4, "stats": 1}


def test_a_fault_may_be_meant_for_some_calls_and_may_come_after_the_effect() -> None:
    store = FaultyStore(MemoryStore())
    store.fail_on("ensure_group", applied=True, when=lambda topic, *_: topic == "b")
    store.ensure_group("a", GROUP, StartFrom.LATEST)
    with pytest.raises(StoreUnavailableError):
        store.ensure_group("b", GROUP, StartFrom.LATEST)
    store.append(messages(1, "b"))
    assert store.stats("b", GROUP) == Stats(pending=1)


@pytest.mark.parametrize("applied", [False, True])
def test_a_pause_stops_one_call_before_or_after_its_effect(applied: bool) -> None:
    store = PausingStore(MemoryStore())
    store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    ended = threading.Event()

    def append() -> None:
        store.append(messages(1))
        ended.set()

    with store.pause_on("append", applied=applied) as pause, in_thread(append):
        pause.wait_reached()
        assert store.stats(TOPIC, GROUP) == Stats(pending=int(applied))
        store.append(messages(1, start=1))  # the next call does not stop
        assert not ended.is_set()
        pause.resume()
    assert ended.wait(DEADLINE)


def test_a_pause_that_is_resumed_before_anybody_comes_stops_nobody() -> None:
    store = PausingStore(MemoryStore())
    store.pause_on("ping").resume()
    store.ping()
