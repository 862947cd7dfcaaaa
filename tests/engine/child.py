"""What the tests run in processes of their own.

As a program: ``python -m tests.engine.child FUNCTION URL LOCKS LATENCY``, see `Backend`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from queue_lib import Delivery, Message, new_store_queue
from queue_lib.lockers.sql import SQLLocker
from queue_lib.testing.faults import PausingStore
from tests.engine.harness import (
    DEADLINE,
    FAST,
    GROUP,
    LOCK_TTL,
    MINUTE,
    TOPIC,
    Backend,
    Gate,
    Inbox,
    eventually,
)


def say(something: object) -> None:
    """Tell the parent."""
    sys.stdout.write(f"{something}\n")
    sys.stdout.flush()


def short(backend: Backend) -> dict[str, Any]:
    """Options whose leases are soon over."""
    return {**FAST, "lease_duration": backend.lease}


def publish(backend: Backend) -> None:
    """Publish once the parent says so; say the instant."""
    with new_store_queue(backend.open()) as queue:
        sys.stdin.readline()
        say(time.monotonic())
        queue.publish(Message(TOPIC))


def die_of_the_message(backend: Backend) -> None:
    """Die of each message; end when the message is dead."""

    def handle(delivery: Delivery) -> None:
        say(f"run {delivery.attempt}")
        os._exit(9)

    with new_store_queue(backend.open()) as queue:
        queue.subscribe(
            TOPIC, GROUP, handle, **short(backend), max_attempts=3, dead_letter_topic="dead"
        )
        eventually(lambda: queue.stats(TOPIC, GROUP).dead)


def hold(backend: Backend) -> None:
    """Hold what comes, say what it is, and wait to be killed."""

    def handle(delivery: Delivery) -> None:
        say(delivery.id)
        delivery.cancelled.wait(2 * DEADLINE)

    queue = new_store_queue(backend.open())
    queue.subscribe(TOPIC, GROUP, handle, **short(backend), concurrency=20)
    sys.stdin.readline()


def freeze(backend: Backend) -> None:
    """Stop with a delivery in hand, between two statements; say how its run ended."""
    store = PausingStore(backend.open())
    queue = new_store_queue(store)

    def handle(delivery: Delivery) -> None:
        delivery.cancelled.wait(DEADLINE)
        say(delivery.cancel_reason)

    with store.pause_on("extend") as pause:
        queue.subscribe(TOPIC, GROUP, handle, **{**short(backend), **MINUTE})
        pause.wait_reached()
        say("freezes")
        os.kill(os.getpid(), signal.SIGSTOP)
    say(queue.close(timeout=DEADLINE))


def end(backend: Backend, how: str) -> None:
    """End without closing anything, while handlers are at work."""
    queue = new_store_queue(backend.open())
    at_work = threading.Event()

    def block(_: Delivery) -> None:
        at_work.set()
        threading.Event().wait()

    def churn(delivery: Delivery) -> None:
        queue.publish(Message(delivery.topic))

    queue.subscribe(TOPIC, GROUP, block, **short(backend), concurrency=1)
    queue.subscribe("churn", GROUP, churn, **FAST)
    queue.publish(*(Message("churn") for _ in range(10)), Message(TOPIC, id="left"))
    assert at_work.wait(DEADLINE)
    if how == "exit":
        sys.exit(3)
    if how == "raise":
        raise ValueError("the end")


def fork(backend: Backend) -> None:
    """Fork several times under load; say what became of each child, then of the parent."""
    # Python 3.12 and later warn of what is shown to work here.
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork")
    queue = new_store_queue(backend.open())
    inbox, stop = Inbox(), threading.Event()

    def make_noise() -> None:
        while not stop.wait(0.001):
            queue.publish(Message("noise"))

    noise = [threading.Thread(target=make_noise) for _ in range(2)]
    with Gate() as gate:
        queue.subscribe(TOPIC, GROUP, inbox, **MINUTE)
        held = queue.subscribe("held", GROUP, gate, **MINUTE)
        queue.subscribe("noise", GROUP, lambda _: None, **FAST)
        queue.publish(Message("held"))
        gate.wait()
        for thread in noise:
            thread.start()
        children = 4
        for number in range(children):
            if not (pid := os.fork()):
                _in_forked_child(partial(_use, queue, held, number))
            say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        stop.set()
        for thread in noise:
            thread.join()
        queue.publish(Message(TOPIC, id="parent"))
        inbox.wait(children + 1)  # the children's messages came here
        say(sorted(inbox.ids))
        say(f"held {queue.stats('held', GROUP).leased}, attempts {gate.attempts}")
        say(f"ok {queue.health().ok}")
        gate.open()
        say(queue.close(DEADLINE))


def _use(queue: Any, held: Any, number: int) -> None:
    """Do in a forked child what is allowed there."""
    assert queue.health().subscriptions == ()
    assert held.close(timeout=0) is True  # the parent's: nothing happens to it
    queue.publish(Message(TOPIC, id=f"child {number}"))
    own = Inbox()
    topic = f"own-{number}"
    subscription = queue.subscribe(topic, GROUP, own, **MINUTE)
    queue.publish(Message(topic))
    own.wait()
    assert subscription.close(DEADLINE) is True
    assert queue.close(DEADLINE) is True


def _in_forked_child(work: Callable[[], None]) -> None:
    signal.alarm(int(DEADLINE))  # a lock that nobody will release any more
    code = 1
    try:
        work()
        code = 0
    except Exception:  # noqa: BLE001 - whatever it is must not run on as the parent
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    script, url, locks, latency, *arguments = sys.argv[1:]
    locker = SQLLocker(locks, ttl=LOCK_TTL) if locks else None
    backend = Backend("child", frozenset(), url, locks, float(latency), locker=locker)
    globals()[script](backend, *arguments)
