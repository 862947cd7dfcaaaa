"""``kill -9`` at each point where two things must not come apart: every message has its right fate.

The victim is a child that stops at the point; the survivor is a member in this process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from tests.processes.harness import Start, assert_sound, drain, member, register, runs
from tests.processes.log import Log
from tests.processes.worker import GROUPS, TOPIC, Settings

pytestmark = [pytest.mark.slow, pytest.mark.processes]

GROUP = GROUPS[0]
SOON = 3.0  # seconds after the end of a lease


@pytest.mark.parametrize("point", ["before append", "after append"])
def test_a_publisher_killed_before_its_answer_may_publish_again(
    settings: Settings, log: Log, start: Start, point: str
):
    publisher = start(settings)
    register(settings, log)
    batch = [("a", "k", 0), ("b", "k", 1), ("c", "", 0)]
    publisher.tell(f"pause {point}")
    publisher.publish([batch])
    publisher.hear(f"at {point}")
    publisher.kill()
    with member(settings, log) as survivor:
        stored = 3 if point == "after append" else 0
        assert survivor.queue.stats(TOPIC, GROUP).pending == stored
        survivor.publish([batch])
        assert survivor.queue.stats(TOPIC, GROUP).pending == 3
        drain(survivor)
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
def test_what_a_killed_consumer_held_has_its_right_fate(
    settings: Settings, log: Log, start: Start, crash: Crash
):
    settings = replace(settings, max_attempts=crash.max_attempts)
    victim = start(replace(settings, fails=crash.fails, stays=crash.stays))
    register(settings, log)
    with member(settings, log) as survivor:
        survivor.publish([[("a", "", 0)]])
        victim.tell(f"pause {crash.point}", "subscribe")
        victim.hear(f"at {crash.point}")
        victim.kill()
        assert drain(survivor) == crash.dead
    assert runs(log, log.read("published")[0]["pid"]) == [("a", n) for n in crash.attempts]
    assert_sound(settings, log)
    redelivered_soon(log)
    copies = log.read("copy")
    assert len(copies) == crash.dead
    for copy in copies:
        # What the victim stored stays as it is; without that, nobody knows how its run ended.
        died_first = crash.point == "before append"
        said = "attempt 1 ended without an outcome" if died_first else "ValueError: made to fail"
        assert copy["attempts"] == 1
        assert copy["error"].startswith(said)


def redelivered_soon(log: Log) -> None:
    """What a killed process held is claimed again soon after the end of its lease."""
    for first, second in pairwise(log.read("claimed")):
        confirmed = [
            event["asked"] for event in log.read("extended") if event["token"] == first["token"]
        ]
        ended = max([first["asked"], *confirmed]) + first["lease"]
        assert second["at"] < ended + SOON * 1e9


def test_a_consumer_killed_while_it_gives_back(settings: Settings, log: Log, start: Start):
    """What was given back did not spend an attempt, and waits for no lease."""
    victim = start(replace(settings, stays=True, lease=60))
    register(settings, log)
    with member(settings, log) as survivor:
        survivor.publish([[("a", "", 0)]])
        victim.tell("pause in handler", "pause after release", "subscribe")
        victim.hear("at in handler")
        victim.tell("unsubscribe 0")
        victim.hear("at after release")
        victim.kill()
        drain(survivor)
    assert runs(log) == [("a", 1), ("a", 1)]
    assert_sound(settings, log)


def test_a_message_that_kills_its_process_is_dead_after_its_attempts(
    settings: Settings, log: Log, start: Start
):
    settings = replace(settings, max_attempts=2)
    victims = [start(settings) for _ in range(settings.max_attempts)]
    register(settings, log)
    with member(settings, log) as survivor:
        survivor.publish([[("a", "k", 0), ("b", "k", 1)]])
        for victim in victims:
            victim.tell("pause in handler", "subscribe")
            victim.hear("at in handler")
            victim.kill()
        assert drain(survivor) == 1
    assert runs(log) == [("a", 1), ("a", 2), ("b", 1)]
    assert_sound(settings, log)
    (copy,) = log.read("copy")
    assert copy["attempts"] == 2
    assert "lease expired" in copy["error"]


@pytest.mark.parametrize("point", ["after claim", "in handler", "before ack", "after ack"])
def test_keys_whose_holder_was_killed_flow_on(
    settings: Settings, log: Log, start: Start, point: str
):
    settings = replace(settings, concurrency=4)
    victim = start(settings)
    register(settings, log)
    with member(settings, log) as survivor:
        survivor.publish([[(f"{key}{n}", key, n) for n in range(3) for key in "kl"]])
        victim.tell(f"pause {point}", "subscribe")
        victim.hear(f"at {point}")
        victim.kill()
        assert drain(survivor) == 0
    assert_sound(settings, log)
