"""What the tests run in processes of their own: ``python -m tests.engine.child FUNCTION URL``."""

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

import sqlalchemy as sa

from queue_lib import Delivery, Message, new_store_queue, open_queue
from queue_lib.stores.sql.open import open_sql_store
from queue_lib.testing.faults import PausingStore
from tests.engine.harness import DEADLINE, FAST, GROUP, MINUTE, TOPIC, Gate, Inbox, eventually

SHORT: dict[str, Any] = {**FAST, "lease_duration": 0.3}


def say(something: object) -> None:
    """Tell the parent."""
    sys.stdout.write(f"{something}\n")
    sys.stdout.flush()


def publish(url: str) -> None:
    """Publish once the parent says so; say the instant."""
    with open_queue(url) as queue:
        sys.stdin.readline()
        say(time.monotonic())
        queue.publish(Message(TOPIC))


def die_of_the_message(url: str) -> None:
    """Die of each message; end when the message is dead."""

    def handle(delivery: Delivery) -> None:
        say(f"run {delivery.attempt}")
        os._exit(9)

    with open_queue(url) as queue:
        queue.subscribe(TOPIC, GROUP, handle, **SHORT, max_attempts=3, dead_letter_topic="dead")
        eventually(lambda: queue.stats(TOPIC, GROUP).dead)


def hold(url: str) -> None:
    """Hold what comes, say what it is, and wait to be killed."""

    def handle(delivery: Delivery) -> None:
        say(delivery.id)
        delivery.cancelled.wait(2 * DEADLINE)

    queue = open_queue(url)
    queue.subscribe(TOPIC, GROUP, handle, **SHORT, concurrency=20)
    sys.stdin.readline()


def freeze(url: str) -> None:
    """Stop with a delivery in hand, between two statements; say how its run ended."""
    store = PausingStore(open_sql_store(sa.make_url(url)))
    queue = new_store_queue(store)

    def handle(delivery: Delivery) -> None:
        delivery.cancelled.wait(DEADLINE)
        say(delivery.cancel_reason)

    with store.pause_on("extend") as pause:
        queue.subscribe(TOPIC, GROUP, handle, **{**SHORT, **MINUTE})
        pause.wait_reached()
        say("freezes")
        os.kill(os.getpid(), signal.SIGSTOP)
    say(queue.close(timeout=DEADLINE))


def end(url: str, how: str) -> None:
    """End without closing anything, while handlers are at work."""
    queue = open_queue(url)
    at_work = threading.Event()

    def block(_: Delivery) -> None:
        at_work.set()
        threading.Event().wait()

    def churn(delivery: Delivery) -> None:
        queue.publish(Message(delivery.topic))

    queue.subscribe(TOPIC, GROUP, block, **SHORT, concurrency=1)
    queue.subscribe("churn", GROUP, churn, **FAST)
    queue.publish(*(Message("churn") for _ in range(10)), Message(TOPIC, id="left"))
    assert at_work.wait(DEADLINE)
    if how == "exit":
        sys.exit(3)
    if how == "raise":
        raise ValueError("the end")


def fork(url: str) -> None:
    """Fork several times under load; say what became of each child, then of the parent."""
    # Python 3.12 and later warn of what is shown to work here.
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork")
    queue = open_queue(url)
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
    globals()[sys.argv[1]](*sys.argv[2:])
