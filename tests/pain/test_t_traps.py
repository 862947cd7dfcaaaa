"""T. Traps of the contract itself, tried through the engine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from queue_lib import (
    HEADER_DEAD_LETTER_ERROR,
    HEADER_DEAD_LETTER_MESSAGE_ID,
    Delivery,
    EngineConfig,
    Message,
    Permanent,
    StartFrom,
    Stats,
)
from queue_lib.engine.queue import StoreQueue
from queue_lib.engine.settle import MAX_ERROR_BYTES
from tests.engine.conftest import OpenQueue
from tests.engine.harness import (
    FAST,
    GROUP,
    MINUTE,
    TOPIC,
    Backend,
    Diary,
    Inbox,
    eventually,
    messages,
)

DEAD = "orders.dead"
TINY = 1e-9
"""Hours of a retention that is over at once."""


def give_up(delivery: Delivery) -> None:
    raise Permanent("x" * 5_000_000)


def test_a_copy_on_a_topic_without_a_group_outlives_the_acked_retention(
    backend: Backend, open_queue: OpenQueue
) -> None:
    """T1. It is kept as long as the dead, for whoever comes to look."""
    diary = Diary(backend.open())
    queue = open_queue(diary, EngineConfig(janitor_interval=0.01, acked_retention_hours=TINY))
    queue.subscribe(TOPIC, GROUP, give_up, **FAST, dead_letter_topic=DEAD)
    queue.publish(*messages(1), Message("unheard"))
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats(dead=1))
    eventually(lambda: sum(entry.answer for entry in diary.of("purge")))  # the one that is unheard
    diary.wait("purge", len(diary.of("purge")) + 2)
    late = Inbox()
    queue.subscribe(DEAD, "care", late, **FAST, start_from=StartFrom.EARLIEST)
    (copy,) = late.wait()
    assert (copy.headers or {})[HEADER_DEAD_LETTER_MESSAGE_ID] == "orders-0"


def test_a_copy_says_what_is_true_whatever_the_message_said(open_queue: OpenQueue) -> None:
    """T2. A payload at the limit, an error of megabytes, and headers that pretend something."""
    limit = 1000
    queue = open_queue(config=EngineConfig(max_payload_bytes=limit))
    dead = Inbox()
    queue.subscribe(DEAD, "care", dead, **FAST)
    queue.subscribe(TOPIC, GROUP, give_up, **FAST, dead_letter_topic=DEAD)
    pretended = {HEADER_DEAD_LETTER_ERROR: "all is well", HEADER_DEAD_LETTER_MESSAGE_ID: "another"}
    queue.publish(Message(TOPIC, bytes(limit), key="k", id="a", headers=pretended))
    (copy,) = dead.wait()
    headers = copy.headers or {}
    assert (len(copy.payload), copy.key) == (limit, "k")
    assert headers[HEADER_DEAD_LETTER_MESSAGE_ID] == "a"
    assert headers[HEADER_DEAD_LETTER_ERROR].startswith("Permanent: xxx")
    assert len(headers[HEADER_DEAD_LETTER_ERROR]) == MAX_ERROR_BYTES
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats(dead=1))


@pytest.mark.parametrize("sooner", [None, timedelta(seconds=-1)], ids=["at once", "in the past"])
def test_publishing_an_id_again_reschedules_nothing(
    queue: StoreQueue, sooner: timedelta | None
) -> None:
    """T7. An id that is stored is a no-op, its schedule included."""
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, inbox, **MINUTE)
    now = datetime.now(UTC)
    queue.publish(Message(TOPIC, id="a", deliver_at=now + timedelta(hours=1)))
    queue.publish(Message(TOPIC, id="a", deliver_at=None if sooner is None else now + sooner))
    queue.publish(Message(TOPIC, id="b"))
    inbox.wait()
    eventually(lambda: queue.group_stats(TOPIC, GROUP).leased == 0)
    assert queue.group_stats(TOPIC, GROUP).scheduled == 1
    assert inbox.ids == ["b"]
