"""A consumer that is frozen past its lease, and one that is asked to end."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from tests.engine.harness import eventually
from tests.processes.harness import (
    Start,
    assert_sound,
    await_drained,
    drain,
    member,
    register,
    runs,
)
from tests.processes.log import Log
from tests.processes.worker import GROUPS, TOPIC, Settings

pytestmark = [pytest.mark.slow, pytest.mark.processes]


@pytest.mark.parametrize("outcome", ["returned", "raised", "doomed"])
def test_what_a_frozen_process_says_later_is_void(
    settings: Settings, log: Log, start: Start, outcome: str
):
    """Its run sees that it is cancelled; it acknowledges, fails and buries nothing."""
    frozen = start(
        replace(settings, stays=True, fails=outcome == "raised", dooms=outcome == "doomed")
    )
    register(settings, log)
    with member(settings, log) as other:
        other.publish([[("a", "k", 0), ("b", "k", 1)]])
        # Both of its threads are at a known point: none is in a transaction that would hold up
        # the others as long as it is frozen.
        frozen.tell("pause in handler", "subscribe")
        frozen.hear("at in handler")
        frozen.tell("pause after extend")
        frozen.hear("at after extend")
        frozen.signal(signal.SIGSTOP)
        assert drain(other) == 0
        frozen.signal(signal.SIGCONT)
        frozen.tell("go")
        eventually(lambda: log.read("end")[-1]["pid"] == frozen.pid)
        frozen.tell("close 5")
        assert frozen.end() == 0
    assert runs(log) == [("a", 1), ("a", 2), ("b", 1)]
    late = log.read("end")[-1]
    assert (late["outcome"], late["cancelled"]) == (outcome, "lease lost")
    assert [loss["pid"] for loss in log.read("lost")] == [frozen.pid]
    assert_sound(settings, log)


@pytest.mark.parametrize("write", ["ack", "retry", "kill"])
def test_an_outcome_on_its_way_while_its_process_is_frozen_is_refused(
    settings: Settings, log: Log, start: Start, write: str
):
    """It was decided in time, and arrives while somebody else is at work on the delivery."""
    if write == "kill":
        settings = replace(settings, dooms=1, lease=2)  # its copy is stored while it is its own
    frozen = start(replace(settings, fails=write == "retry"))
    register(settings, log)
    with member(settings, log) as other:
        other.publish([[("a", "k", 0), ("b", "k", 1)]])
        frozen.tell("pause in handler", "subscribe")
        frozen.hear("at in handler")
        frozen.tell("pause after extend")
        frozen.hear("at after extend")  # nobody renews the lease any more
        frozen.tell(f"pause before {write}", "go in handler")
        frozen.hear(f"at before {write}")
        frozen.signal(signal.SIGSTOP)
        with other.pause("in handler") as at_work:
            other.subscribe()
            at_work.wait_reached()
            frozen.signal(signal.SIGCONT)
            frozen.tell(f"go before {write}")
            eventually(lambda: log.read("refused"))
            # Or it would compete for the one behind, and fail that, too.
            frozen.tell("go after extend", "unsubscribe 5")
            frozen.hear("unsubscribed")
        assert await_drained(other.queue) == (2 if write == "kill" else 0)
        frozen.tell("close 5")
        assert frozen.end() == 0
    assert runs(log) == [("a", 1), ("a", 2), ("b", 1)]
    assert [refusal["pid"] for refusal in log.read("refused")] == [frozen.pid]
    assert [loss["pid"] for loss in log.read("lost")] == [frozen.pid]
    assert_sound(settings, log)


def test_sigterm_drains(settings: Settings, log: Log, start: Start):
    settings = replace(settings, concurrency=2, lease=60, max_attempts=1)
    ending = start(settings)
    register(settings, log)
    with member(settings, log) as other:
        other.publish([[(f"{key}{n}", key, n) for n in range(3) for key in ("k", "l", "m")]])
        ending.tell("pause in handler", "pause in handler", "subscribe")
        ending.hear("at in handler")
        ending.hear("at in handler")
        ending.signal(signal.SIGTERM)
        ending.hear("closing")
        ending.tell("go")
        assert ending.end() == 0
        assert other.queue.stats(TOPIC, GROUPS[0]).leased == 0
        assert len(runs(log, ending.pid)) >= 2
        assert drain(other) == 0
    assert {attempt for _, attempt in runs(log)} == {1}
    assert len(runs(log)) == 9
    assert_sound(settings, log)


def test_sigterm_gives_back_what_does_not_end_in_time(settings: Settings, log: Log, start: Start):
    """Another consumer has it at once, not a lease of a minute later, and no attempt is spent."""
    settings = replace(settings, lease=60, max_attempts=1)
    ending = start(replace(settings, stays=True, patience=0.2))
    register(settings, log)
    with member(settings, log) as other:
        other.publish([[("a", "k", 0), ("b", "k", 1)]])
        ending.tell("pause in handler", "subscribe")
        ending.hear("at in handler")
        ending.tell("go")  # it stays all the same, until it is cancelled
        ending.signal(signal.SIGTERM)
        assert ending.end() == 0
        assert drain(other) == 0
    assert runs(log) == [("a", 1), ("a", 1), ("b", 1)]
    assert_sound(settings, log)
