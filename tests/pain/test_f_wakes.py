"""F. Wake-ups and idle cost."""

from __future__ import annotations

import time

import pytest

from queue_lib import Stats
from tests.engine.conftest import OpenQueue
from tests.engine.harness import (
    GROUP,
    MINUTE,
    TOPIC,
    Backend,
    Diary,
    Inbox,
    eventually,
    messages,
)

INSTANCES, BURST = 5, 100

FOLDED = 0.005
"""Seconds in which the stores that wake others fold what comes together, at least."""


@pytest.mark.requires("wake")
def test_a_burst_wakes_an_idle_instance_a_few_times_and_not_for_each_message(
    backend: Backend, open_queue: OpenQueue
) -> None:
    """P59. Every instance hears of it; none asks once for each message that others get."""
    diaries = [Diary(backend.open()) for _ in range(INSTANCES)]
    inbox = Inbox()
    for diary in diaries:
        open_queue(diary).subscribe(TOPIC, GROUP, inbox, **MINUTE)
    publisher = open_queue()
    began = time.monotonic()
    for message in messages(BURST):
        publisher.publish(message)
    inbox.wait(BURST)
    eventually(lambda: publisher.stats(TOPIC, GROUP) == Stats())
    wakes = 2 + (time.monotonic() - began) / FOLDED
    claims = [entry for diary in diaries for entry in diary.of("claim")]
    assert sum(not entry.answer for entry in claims) < INSTANCES * wakes
