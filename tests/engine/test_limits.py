"""Limits and order over several instances: the cap of a group, and the lanes of its keys."""

from __future__ import annotations

import random
import threading
from collections import defaultdict

import pytest

from queue_lib import Delivery, Message, Permanent, Stats
from tests.engine.conftest import OpenQueue
from tests.engine.harness import DEADLINE, FAST, GROUP, TOPIC, Gate, eventually, messages

pytestmark = pytest.mark.slow


def test_three_instances_keep_to_a_cap_of_two(open_queue: OpenQueue) -> None:
    queues = [open_queue() for _ in range(3)]
    with Gate() as gate:
        for queue in queues:
            queue.subscribe(TOPIC, GROUP, gate, **FAST, concurrency=4, max_in_flight=2)
        queues[0].publish(*messages(40))
        gate.wait(2)  # it is reached …
        for passed in range(1, 20):
            gate.let_pass()
            gate.wait(2 + passed)  # … and reached again whenever one has ended
            assert queues[0].stats(TOPIC, GROUP).leased == 2
        gate.open()
        gate.wait(40)
        eventually(lambda: queues[0].stats(TOPIC, GROUP) == Stats())
    assert gate.peak == 2
    assert len(set(gate.ids)) == len(gate.ids) == 40


def test_each_key_keeps_its_order_over_two_instances_whatever_fails(
    open_queue: OpenQueue,
) -> None:
    """Failures, deaths, and an instance that is replaced while it works."""
    keys, length = 6, 10
    log: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)  # (number, attempt)
    inside: set[str] = set()
    lock = threading.Lock()
    overlaps: list[str] = []
    chance = random.Random(7)

    def handle(delivery: Delivery) -> None:
        with lock:
            if delivery.key in inside:
                overlaps.append(delivery.id)
            inside.add(delivery.key)
            log[delivery.key].append((int(delivery.payload), delivery.attempt))
            fate = chance.random()
        try:
            delivery.cancelled.wait(0.002)
        finally:
            with lock:
                inside.discard(delivery.key)
        if fate < 0.1:
            raise Permanent("given up")
        if fate < 0.4:
            raise ValueError

    queues = [open_queue(), open_queue()]
    for queue in queues:
        queue.subscribe(TOPIC, GROUP, handle, **FAST, concurrency=4, max_attempts=3)
    for number in range(length):
        queues[number % 2].publish(
            *[Message(TOPIC, str(number).encode(), key=f"key {key}") for key in range(keys)]
        )
    assert queues[0].close(DEADLINE) is True
    successor = open_queue()
    successor.subscribe(TOPIC, GROUP, handle, **FAST, concurrency=4, max_attempts=3)
    eventually(lambda: successor.stats(TOPIC, GROUP).pending == 0)
    eventually(lambda: successor.stats(TOPIC, GROUP).leased == 0)
    assert overlaps == []
    for runs in log.values():
        assert runs == sorted(runs)  # no number before an earlier one ended, attempts in order
        assert {number for number, _ in runs} == set(range(length))
