"""Several processes share groups while some are killed: everything is handled, as was promised."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from queue_lib import open_queue
from tests.processes.harness import Child, Start, assert_sound, await_drained
from tests.processes.log import Log
from tests.processes.worker import GROUPS, Record, Settings

pytestmark = [pytest.mark.slow, pytest.mark.processes]

DRAINED_WITHIN = 60.0
POINTS = [
    "after claim", "in handler", "before ack", "after ack", "after extend", "before retry",
    "after append", "before kill",
]  # fmt: skip


def load(name: str, rng: random.Random) -> Iterator[list[Record]]:
    """Make batches of one publisher, without end: a third without a key, the rest of four keys."""
    numbers: Counter[str] = Counter()
    while True:
        keys = rng.choices(["", "", *(f"{name}-{n}" for n in range(4))], k=rng.randint(1, 6))
        batch = []
        for key in keys:
            batch.append((f"{key or name}:{numbers[key]}", key, numbers[key]))
            numbers[key] += 1
        yield batch


class Publisher:
    """A child that publishes more of its load whenever it is asked to."""

    def __init__(self, child: Child, batches: Iterator[list[Record]]) -> None:
        self.child, self._batches = child, batches

    def publish(self, batches: int) -> None:
        """Publish; returns when all is acknowledged."""
        self.child.publish(islice(self._batches, batches))
        self.child.hear("published")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1, 2])
def test_processes_share_groups_while_some_are_killed(
    settings: Settings, log: Log, start: Start, seed: int
):
    rng = random.Random(seed)
    settings = replace(
        settings, groups=GROUPS, concurrency=3, max_in_flight=5, seed=seed, fails=0.1, dooms=0.05,
        takes=0.005,
    )  # fmt: skip
    consumers = [start(settings) for _ in range(4)]
    loads = [load(name, random.Random(f"{seed} {name}")) for name in ("p0", "p1")]
    publishers = [Publisher(start(settings), batches) for batches in loads]
    for consumer in consumers:
        consumer.start()
    for publisher in publishers:
        publisher.child.hear("ready")
        publisher.publish(20)
    for point in rng.sample(POINTS, 3):
        victim = consumers.pop(rng.randrange(len(consumers)))
        victim.tell(f"pause {point}")
        while not victim.has_said(f"at {point}", 0.1):  # until it is its turn, there is more
            for publisher in publishers:
                publisher.publish(4)
        victim.kill()
        consumers.append(start(settings))
        consumers[-1].start()
    for publisher in publishers:
        publisher.child.tell("close 5")
        assert publisher.child.end() == 0
    with open_queue(settings.url) as queue:
        await_drained(queue, settings.groups, DRAINED_WITHIN)
    for consumer in consumers:
        consumer.tell("close 10")
    assert [consumer.end() for consumer in consumers] == [0] * len(consumers)
    assert_sound(settings, log)
    assert len({run["pid"] for run in log.read("start")}) > 1
