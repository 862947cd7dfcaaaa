"""``kill -9`` at each point where two things must not come apart: every message has its right fate.

The victim is a child that stops at the point; the survivor is a member in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from queue_lib import Stats
from tests.engine.harness import eventually
from tests.processes.harness import Start, assert_sound
from tests.processes.log import Log
from tests.processes.worker import GROUPS, TOPIC, Member, Settings

pytestmark = [pytest.mark.slow, pytest.mark.processes]

GROUP = GROUPS[0]
SOON = 3.0  # seconds after the end of a lease


@contextmanager
def survivor(settings: Settings, log: Log) -> Iterator[Member]:
    """Be a member in this process, whose handler does nothing."""
    member = Member(replace(settings, stays=False, fails=0), log)
    try:
        yield member
    finally:
        member.close(5)


def drain(member: Member) -> Stats:
    """Consume until nothing is pending or leased; return what is left."""
    member.subscribe()
    stats: list[Stats] = []

    def is_drained() -> bool:
        stats.append(member.queue.stats(TOPIC, GROUP))
        return stats[-1].pending == stats[-1].leased == 0

    eventually(is_drained)
    return stats[-1]


def runs(log: Log, pid: int | None = None) -> list[tuple[str, int]]:
    """Return what was handled, in order: message id and attempt; by one process or by all."""
    return [(run["id"], run["attempt"]) for run in log.read("start") if pid in (None, run["pid"])]


@pytest.fixture
def register(settings: Settings, log: Log) -> Callable[[], None]:
    """Register the group, as a consumer does that has gone again."""

    def registered() -> None:
        with survivor(settings, log) as member:
            member.subscribe()

    return registered


@pytest.mark.parametrize("point", ["before append", "after append"])
def test_a_publisher_killed_before_its_answer_may_publish_again(
    settings: Settings, log: Log, start: Start, register: Callable[[], None], point: str
):
    register()
    batch = [("a", "k", 0), ("b", "k", 1), ("c", "", 0)]
    publisher = start(settings)
    publisher.tell(f"pause {point}")
    publisher.publish([batch])
    publisher.hear(f"at {point}")
    publisher.kill()
    with survivor(settings, log) as member:
        stored = 3 if point == "after append" else 0
        assert member.queue.stats(TOPIC, GROUP).pending == stored
        member.publish([batch])
        assert member.queue.stats(TOPIC, GROUP).pending == 3
        drain(member)
    assert sorted(runs(log)) == [("a", 1), ("b", 1), ("c", 1)]
    assert_sound(settings, log)


@dataclass(frozen=True)
class Crash:
    """A consumer that is killed while it holds one message."""

    point: str
    attempts: tuple[int, ...]
    """The attempts that the survivor's handler sees."""
    fails: bool = False
    stays: bool = False
    max_attempts: int = 3
    dead: int = 0

    def __str__(self) -> str:
        return self.point.replace(" ", "-")


CRASHES = [
    Crash("after claim", (2,)),
    Crash("in handler", (2,)),
    Crash("after extend", (2,), stays=True),
    Crash("before ack", (2,)),
    Crash("after ack", ()),
    Crash("before retry", (2,), fails=True),
    Crash("after retry", (2,), fails=True),
    # The first append of a consumer is that of a dead-letter copy.
    Crash("before append", (), fails=True, max_attempts=1, dead=1),
    Crash("after append", (), fails=True, max_attempts=1, dead=1),
    Crash("before kill", (), fails=True, max_attempts=1, dead=1),
    Crash("after kill", (), fails=True, max_attempts=1, dead=1),
]


@pytest.mark.parametrize("crash", CRASHES, ids=str)
def test_a_consumer_killed(
    settings: Settings, log: Log, start: Start, register: Callable[[], None], crash: Crash
):
    settings = replace(
        settings, fails=crash.fails, stays=crash.stays, max_attempts=crash.max_attempts
    )
    register()
    victim = start(settings)
    with survivor(settings, log) as member:
        member.publish([[("a", "", 0)]])
        victim.tell(f"pause {crash.point}", "subscribe")
        victim.hear(f"at {crash.point}")
        victim.kill()
        assert drain(member) == Stats(dead=crash.dead)
    assert runs(log, log.read("published")[0]["pid"]) == [("a", n) for n in crash.attempts]
    assert_sound(settings, log)
    redelivered_soon(log)
    copies = log.read("copy")
    assert len(copies) == crash.dead
    if crash.point in ("after append", "before kill", "after kill"):
        assert (copies[0]["attempts"], copies[0]["error"]) == (1, "ValueError: made to fail")


def redelivered_soon(log: Log) -> None:
    """What a killed process held is claimed again soon after the end of its lease."""
    for first, second in pairwise(log.read("claimed")):
        confirmed = [
            event["asked"] for event in log.read("extended") if event["token"] == first["token"]
        ]
        ended = max([first["asked"], *confirmed]) + first["lease"]
        assert second["at"] < ended + SOON * 1e9


def test_a_consumer_killed_while_it_gives_back(
    settings: Settings, log: Log, start: Start, register: Callable[[], None]
):
    """What was given back did not spend an attempt, and waits for no lease."""
    settings = replace(settings, stays=True, lease=60)
    register()
    victim = start(settings)
    with survivor(settings, log) as member:
        member.publish([[("a", "", 0)]])
        victim.tell("pause in handler", "pause after release", "subscribe")
        victim.hear("at in handler")
        victim.tell("unsubscribe 0")
        victim.hear("at after release")
        victim.kill()
        drain(member)
    assert runs(log) == [("a", 1), ("a", 1)]
    assert_sound(settings, log)


def test_a_message_that_kills_its_process_is_dead_after_its_attempts(
    settings: Settings, log: Log, start: Start, register: Callable[[], None]
):
    settings = replace(settings, max_attempts=2)
    register()
    victims = [start(settings) for _ in range(settings.max_attempts)]
    with survivor(settings, log) as member:
        member.publish([[("a", "k", 0), ("b", "k", 1)]])
        for victim in victims:
            victim.tell("pause in handler", "subscribe")
            victim.hear("at in handler")
            victim.kill()
        assert drain(member) == Stats(dead=1)
    assert runs(log) == [("a", 1), ("a", 2), ("b", 1)]
    assert_sound(settings, log)
    (copy,) = log.read("copy")
    assert copy["attempts"] == 2
    assert "lease expired" in copy["error"]


@pytest.mark.parametrize("point", ["after claim", "in handler", "before ack", "after ack"])
def test_a_key_whose_holder_was_killed_flows_on(
    settings: Settings, log: Log, start: Start, register: Callable[[], None], point: str
):
    register()
    victim = start(replace(settings, concurrency=4))
    with survivor(replace(settings, concurrency=4), log) as member:
        member.publish([[(f"{key}{n}", key, n) for n in range(3) for key in "kl"]])
        victim.tell(f"pause {point}", "subscribe")
        victim.hear(f"at {point}")
        victim.kill()
        assert drain(member) == Stats()
    assert_sound(settings, log)
