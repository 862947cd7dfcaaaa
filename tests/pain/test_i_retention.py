"""I. Retention, janitor, growth."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from queue_lib import EngineConfig, Message, StartFrom, Stats
from queue_lib.engine.queue import StoreQueue
from queue_lib.testing.conformance.case import together
from tests.engine.conftest import OpenQueue
from tests.engine.harness import (
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

TINY = 1e-9
"""Hours of a retention that is over at once."""

BUSY_JANITOR = EngineConfig(janitor_interval=0.01, retention_hours=TINY, acked_retention_hours=TINY)


def purged(*diaries: Diary) -> int:
    """Return how many rows went so far."""
    return sum(entry.answer for diary in diaries for entry in diary.of("purge"))


def test_the_janitor_works_while_every_handler_is_busy(
    backend: Backend, open_queue: OpenQueue
) -> None:
    """P71. It has a thread of its own, and waits for no idle moment."""
    diary = Diary(backend.open())
    queue = open_queue(diary, BUSY_JANITOR)
    with Gate() as gate:
        queue.subscribe(TOPIC, GROUP, gate, **FAST, concurrency=2)
        queue.publish(*messages(10))
        gate.wait(2)
        queue.publish(*messages(30, "unheard"))
        eventually(lambda: purged(diary) == 30)
        assert queue.stats(TOPIC, GROUP) == Stats(pending=8, leased=2)


def publish_alone(queue: StoreQueue, _: Backend) -> None:
    queue.publish(*messages(30))


def publish_in_a_transaction(queue: StoreQueue, backend: Backend) -> None:
    engine = sa.create_engine(backend.url)
    with engine.begin() as connection:
        queue.publish(*messages(30), connection=connection)
    engine.dispose()


@pytest.mark.parametrize(
    "publish",
    [
        pytest.param(publish_alone, id="by itself"),
        pytest.param(
            publish_in_a_transaction,
            id="in a transaction",
            marks=pytest.mark.requires("transactional"),
        ),
    ],
)
def test_a_process_that_only_publishes_purges_too(
    backend: Backend, open_queue: OpenQueue, publish: Callable[[StoreQueue, Backend], None]
) -> None:
    """P72. Nobody consumes, no group was ever there, and yet nothing grows for ever."""
    diary = Diary(backend.open())
    publish(open_queue(diary, BUSY_JANITOR), backend)
    eventually(lambda: purged(diary) == 30)


def test_of_two_registrations_with_different_starts_one_decides(
    backend: Backend, open_queue: OpenQueue
) -> None:
    """P76. At one moment: all that was there, or none of it, and what comes after in any case."""
    queues = [open_queue(), open_queue()]
    queues[0].publish(*messages(20))
    inbox = Inbox()
    starts = [StartFrom.EARLIEST, StartFrom.LATEST]

    def subscribe(number: int) -> None:
        queues[number].subscribe(TOPIC, GROUP, inbox, **FAST, start_from=starts[number])

    together(2, subscribe)
    queues[0].publish(Message(TOPIC, id="after"))
    eventually(lambda: "after" in inbox.ids)
    eventually(lambda: queues[0].stats(TOPIC, GROUP) == Stats())
    assert len(inbox.ids) in (1, 21)
    assert len(set(inbox.ids)) == len(inbox.ids)
