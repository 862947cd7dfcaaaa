"""Processes that die, freeze, fork and end: what becomes of what they held."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from queue_lib import StartFrom, Stats
from queue_lib.engine.queue import StoreQueue
from tests.engine.harness import (
    DEADLINE,
    FAST,
    GROUP,
    TOPIC,
    Backend,
    Inbox,
    eventually,
    messages,
    run_child,
    start_child,
)

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.requires("shared")]

SECONDS_TO_END = 10.0
"""How long a process takes to start and end at most, on a busy machine."""


def register(queue: StoreQueue, *topics: str) -> None:
    for topic in topics:
        queue.subscribe(topic, GROUP, Inbox(), start_from=StartFrom.EARLIEST).close()


def lines(child: subprocess.Popen[str], count: int) -> list[str]:
    assert child.stdout is not None
    return [child.stdout.readline().strip() for _ in range(count)]


def test_a_message_that_kills_its_process_is_dead_after_its_attempts(
    backend: Backend, queue: StoreQueue
) -> None:
    register(queue, TOPIC)
    dead = Inbox()
    queue.subscribe("dead", GROUP, dead, **FAST)
    queue.publish(*messages(1, key="k"))
    output = ""
    codes = []
    while 0 not in codes:  # its supervisor starts it again each time
        code, said, errors, _ = run_child("die_of_the_message", backend)
        output += said
        codes.append(code)
        assert len(codes) < 6, errors
    assert output.split("\n") == ["run 1", "run 2", "run 3", ""]
    assert codes == [9, 9, 9, 0]
    (copy,) = dead.wait()
    assert copy.headers is not None
    assert "its lease expired" in copy.headers["x-queue-dlq-error"]
    assert copy.headers["x-queue-dlq-attempts"] == "3"
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, inbox, **FAST)
    queue.publish(*messages(1, start=1, key="k"))
    inbox.wait()  # the key flows again


def test_what_a_killed_process_held_comes_back_within_a_lease(
    backend: Backend, queue: StoreQueue
) -> None:
    register(queue, TOPIC)
    queue.publish(*messages(5), *messages(5, start=5, key="k"))
    with start_child("hold", backend) as child:
        lines(child, 6)  # five, and the head of the key
        child.kill()
    killed = time.monotonic()
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, inbox, **FAST)
    inbox.wait(10)
    assert inbox.times[-1] - killed < backend.lease + backend.hold_up + 1.5
    attempts = {delivery.id: delivery.attempt for delivery in inbox.deliveries}
    assert [attempts[f"{TOPIC}-{n}"] for n in range(10)] == [2] * 6 + [1] * 4
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())


def test_a_process_that_was_frozen_finds_its_lease_lost(
    backend: Backend, queue: StoreQueue
) -> None:
    register(queue, TOPIC)
    queue.publish(*messages(1))
    inbox = Inbox()
    with start_child("freeze", backend) as child:
        assert lines(child, 1) == ["freezes"]
        queue.subscribe(TOPIC, GROUP, inbox, **FAST)
        inbox.wait()
        eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
        child.send_signal(signal.SIGCONT)
        output, errors = child.communicate(timeout=DEADLINE)
    assert output.split() == ["lease", "lost", "True"], errors
    assert queue.stats(TOPIC, GROUP) == Stats()
    assert inbox.attempts == [2]


@pytest.mark.parametrize(("how", "code"), [("fall off", 0), ("exit", 3), ("raise", 1)])
def test_a_process_that_closes_nothing_ends_at_once_and_its_leases_end_by_themselves(
    backend: Backend, queue: StoreQueue, how: str, code: int
) -> None:
    """The threads are daemons and there is no hook: see "At interpreter exit" in the design."""
    returned, output, errors, seconds = run_child("end", backend, how)
    assert returned == code
    assert seconds < SECONDS_TO_END
    assert output == ""
    if how == "raise":
        assert errors.count("Traceback") == 1
        assert errors.endswith("ValueError: the end\n")
    else:
        assert errors == ""
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, inbox, **FAST)
    (delivery,) = inbox.wait()
    assert (delivery.id, delivery.attempt) == ("left", 2)


def test_a_forked_child_publishes_and_leaves_the_parent_s_subscriptions_alone(
    backend: Backend,
) -> None:
    code, output, errors, _ = run_child("fork", backend)
    assert code == 0, errors
    assert output.splitlines() == [
        *["0"] * 4,
        "['child 0', 'child 1', 'child 2', 'child 3', 'parent']",
        "held 1, attempts [1]",
        "ok True",
        "True",
    ], errors
    assert errors == ""
