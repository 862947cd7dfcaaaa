"""Dead-letter copies: what they carry, and that there is exactly one, whatever fails on the way."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from queue_lib import (
    HEADER_DEAD_LETTER_ATTEMPTS,
    HEADER_DEAD_LETTER_DELIVERY_ID,
    HEADER_DEAD_LETTER_ERROR,
    HEADER_DEAD_LETTER_GROUP,
    HEADER_DEAD_LETTER_MESSAGE_ID,
    HEADER_DEAD_LETTER_SOURCE_TOPIC,
    Delivery,
    EngineConfig,
    Message,
    PayloadTooLargeError,
    Permanent,
    Stats,
    StoreError,
    delivery_id,
)
from queue_lib.engine.queue import StoreQueue
from queue_lib.testing.faults import FaultyStore
from tests.engine.conftest import OpenQueue
from tests.engine.harness import FAST, GROUP, TOPIC, Backend, Inbox, eventually, messages

DEAD = "orders.dead"
NAMESPACE = uuid.UUID("6f0c2a52-3c1e-4b8f-9a57-2f3a1e5d7c90")


def fail(delivery: Delivery) -> None:
    raise ValueError(f"attempt {delivery.attempt}")


def give_up(delivery: Delivery) -> None:
    raise Permanent(f"attempt {delivery.attempt}")


def is_copy(batch: list[Message]) -> bool:
    return batch[0].topic == DEAD


def test_the_copy_says_where_it_comes_from_and_why(queue: StoreQueue) -> None:
    dead = Inbox()
    queue.subscribe(DEAD, "care", dead, **FAST)
    queue.subscribe(TOPIC, GROUP, Inbox(then=fail), **FAST, max_attempts=3, dead_letter_topic=DEAD)
    headers = {"trace": "1"}
    queue.publish(Message(TOPIC, b"\0payload", key="k", id="m", headers=dict(headers), priority=7))
    (copy,) = dead.wait()
    delivery = delivery_id("m", GROUP)
    assert copy.id == str(uuid.uuid5(NAMESPACE, f"dlq\0{delivery}"))
    assert (copy.payload, copy.key, copy.priority) == (b"\0payload", "k", 7)
    assert copy.deliver_at is None
    assert copy.published_at is not None
    assert copy.headers == {
        **headers,
        HEADER_DEAD_LETTER_SOURCE_TOPIC: TOPIC,
        HEADER_DEAD_LETTER_GROUP: GROUP,
        HEADER_DEAD_LETTER_DELIVERY_ID: delivery,
        HEADER_DEAD_LETTER_MESSAGE_ID: "m",
        HEADER_DEAD_LETTER_ATTEMPTS: "3",
        HEADER_DEAD_LETTER_ERROR: "ValueError: attempt 3",
    }
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats(dead=1))
    eventually(lambda: queue.stats(DEAD, "care") == Stats())


def test_the_copy_is_of_what_was_published_whatever_the_handler_did_to_it(
    queue: StoreQueue,
) -> None:
    def handle(delivery: Delivery) -> None:
        assert delivery.headers is not None
        delivery.headers.update(trace="2", more="3")
        delivery.payload, delivery.key = b"other", "other"
        raise Permanent

    dead = Inbox()
    queue.subscribe(DEAD, "care", dead, **FAST)
    queue.subscribe(TOPIC, GROUP, handle, **FAST, dead_letter_topic=DEAD)
    queue.publish(Message(TOPIC, b"mine", key="k", headers={"trace": "1"}))
    (copy,) = dead.wait()
    assert (copy.payload, copy.key) == (b"mine", "k")
    assert copy.headers is not None
    assert copy.headers["trace"] == "1"
    assert "more" not in copy.headers


def test_each_group_that_gives_up_makes_its_own_copy(queue: StoreQueue) -> None:
    dead = Inbox()
    queue.subscribe(DEAD, "care", dead, **FAST)
    for group in ("one", "two"):
        queue.subscribe(TOPIC, group, give_up, **FAST, dead_letter_topic=DEAD)
    queue.publish(*messages(1))
    copies = dead.wait(2)
    assert {(copy.headers or {})[HEADER_DEAD_LETTER_GROUP] for copy in copies} == {"one", "two"}


def test_a_copy_of_a_copy_names_the_last_stop(queue: StoreQueue) -> None:
    end = Inbox()
    queue.subscribe("end", "care", end, **FAST)
    queue.subscribe(DEAD, "care", give_up, **FAST, dead_letter_topic="end")
    queue.subscribe(TOPIC, GROUP, give_up, **FAST, dead_letter_topic=DEAD)
    queue.publish(*messages(1))
    (copy,) = end.wait()
    assert (copy.headers or {})[HEADER_DEAD_LETTER_SOURCE_TOPIC] == DEAD


def test_a_message_at_every_limit_can_still_be_dead_lettered(open_queue: OpenQueue) -> None:
    limit = 1000
    queue = open_queue(config=EngineConfig(max_payload_bytes=limit))
    dead = Inbox()
    queue.subscribe(DEAD, "care", dead, **FAST)
    queue.subscribe(TOPIC, GROUP, give_up, **FAST, dead_letter_topic=DEAD)
    # 64 KiB encoded, to the byte: {"h":"…"} has eight bytes of its own.
    message = Message(TOPIC, b"x" * limit, headers={"h": "x" * (64 * 1024 - 8)})
    queue.publish(message)
    (copy,) = dead.wait()
    assert copy.payload == message.payload
    assert (copy.headers or {})["h"] == (message.headers or {})["h"]
    with pytest.raises(PayloadTooLargeError):
        queue.publish(Message(TOPIC, copy.payload, headers=copy.headers))


@pytest.mark.slow
@pytest.mark.parametrize("applied", [False, True], ids=["not stored", "answer lost"])
@pytest.mark.parametrize(
    ("error", "times"),
    [(StoreError("broken"), 3), (None, 1)],
    ids=["for good", "for the moment"],
)
def test_a_copy_that_fails_is_tried_again_without_the_handler(
    backend: Backend, open_queue: OpenQueue, applied: bool, error: StoreError | None, times: int
) -> None:
    store = FaultyStore(backend.open())
    queue = open_queue(store)
    inbox, dead = Inbox(then=fail), Inbox()
    queue.subscribe(DEAD, "care", dead, **FAST)
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, max_attempts=2, dead_letter_topic=DEAD)
    store.fail_on("append", error, times=times, applied=applied, when=is_copy)
    queue.publish(*messages(1))
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats(dead=1))
    (copy,) = dead.wait()
    queue.close()
    assert store.raised["append"] == times
    assert inbox.attempts == [1, 2]
    assert len(dead.deliveries) == 1
    assert copy.headers is not None
    assert copy.headers[HEADER_DEAD_LETTER_ERROR] == "ValueError: attempt 2"
    assert copy.headers[HEADER_DEAD_LETTER_ATTEMPTS] == "2"


def test_another_instance_finishes_the_copy_and_does_not_run_the_handler(
    backend: Backend, open_queue: OpenQueue
) -> None:
    store = FaultyStore(backend.open())
    broken, healthy = open_queue(store), open_queue()
    dead, elsewhere = Inbox(), Inbox()
    healthy.subscribe(DEAD, "care", dead, **FAST)
    options: dict[str, Any] = {**FAST, "dead_letter_topic": DEAD, "max_attempts": 5}
    store.fail_on("append", StoreError("broken"), times=None, when=is_copy)
    broken.subscribe(TOPIC, GROUP, give_up, **options)
    broken.publish(*messages(1))
    eventually(lambda: store.raised["append"] >= 2)
    broken.close()
    healthy.subscribe(TOPIC, GROUP, elsewhere, **options)
    (copy,) = dead.wait()
    eventually(lambda: healthy.stats(TOPIC, GROUP) == Stats(dead=1))
    assert elsewhere.deliveries == []
    assert copy.headers is not None
    assert copy.headers[HEADER_DEAD_LETTER_ERROR] == "Permanent: attempt 1"
    assert copy.headers[HEADER_DEAD_LETTER_ATTEMPTS] == "1"


@pytest.mark.slow
@pytest.mark.parametrize("applied", [False, True], ids=["not killed", "answer lost"])
def test_a_kill_that_fails_after_the_copy_makes_no_second_copy(
    backend: Backend, open_queue: OpenQueue, applied: bool
) -> None:
    store = FaultyStore(backend.open())
    queue = open_queue(store)
    inbox, dead = Inbox(then=give_up), Inbox()
    queue.subscribe(DEAD, "care", dead, **FAST)
    store.fail_on("kill", StoreError("broken"), applied=applied)
    queue.subscribe(
        TOPIC, GROUP, inbox, **FAST,
        max_attempts=1, dead_letter_topic=DEAD, lease_duration=backend.lease,
    )  # fmt: skip
    queue.publish(*messages(1))
    dead.wait()
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats(dead=1))
    queue.close()
    assert store.raised["kill"] == 1
    assert len(inbox.deliveries) == len(dead.deliveries) == 1
