"""What these tests run in processes of their own.

As a program: ``python -m tests.pain.child FUNCTION URL LOCKS LATENCY``, as `tests.engine.child`.
"""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import sqlalchemy as sa

from queue_lib import Delivery, Message, new_store_queue, open_queue
from queue_lib.lockers.sql import SQLLocker
from tests.engine.child import say, short
from tests.engine.harness import DEADLINE, FAST, GROUP, LOCK_TTL, TOPIC, Backend

__all__ = ["start"]

_ROOT = Path(__file__).parents[2]


def start(script: str, backend: Backend, *arguments: str) -> subprocess.Popen[str]:
    """Start a function of this module in a process of its own, with pipes to all streams."""
    place = [backend.url, backend.locks, str(backend.latency)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.pain.child", script, *place, *arguments],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def keep_the_interpreter(backend: Backend) -> None:
    """Let no other thread of this process run for several leases; say how the run ended."""

    class Late(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "s late, of a lease of" in record.getMessage():
                late.set()

    late = threading.Event()
    logging.getLogger("queue_lib.engine").addHandler(Late())

    def handle(delivery: Delivery) -> None:
        say(f"run {delivery.attempt}")
        ctypes.PyDLL(None).usleep(int(4 * backend.lease * 1e6))
        delivery.cancelled.wait(DEADLINE)
        late.wait(DEADLINE)
        say(f"late {late.is_set()}, {delivery.cancel_reason}")

    queue = new_store_queue(backend.open())
    subscription = queue.subscribe(TOPIC, GROUP, handle, **short(backend), concurrency=1)
    sys.stdin.readline()
    subscription.close(DEADLINE)
    queue.close(DEADLINE)


def hold_under_a_cap(backend: Backend) -> None:
    """Hold as many as a cap of two allows, say what they are, and wait to be killed."""

    def handle(delivery: Delivery) -> None:
        say(delivery.id)
        delivery.cancelled.wait(2 * DEADLINE)

    queue = new_store_queue(backend.open())
    queue.subscribe(TOPIC, GROUP, handle, **short(backend), max_in_flight=2)
    sys.stdin.readline()


def die_in_a_transaction(backend: Backend, commits: str) -> None:
    """Write an order and its message in one transaction; die behind its commit, or before it."""
    engine = sa.create_engine(backend.url)
    queue = open_queue(engine)
    with engine.connect() as connection:
        connection.exec_driver_sql("insert into shop values (1)")
        queue.publish(Message(TOPIC), connection=connection)
        if commits == "commits":
            connection.commit()
        os._exit(9)


def leave_a_stuck_handler(backend: Backend) -> None:
    """Close the queue while a handler never returns, and come to the end of the program."""
    queue = new_store_queue(backend.open())
    at_work = threading.Event()

    def handle(_: Delivery) -> None:
        at_work.set()
        threading.Event().wait()

    queue.subscribe(TOPIC, GROUP, handle, **FAST)
    queue.publish(Message(TOPIC, id="left"))
    assert at_work.wait(DEADLINE)
    say(queue.close(timeout=0.1))


if __name__ == "__main__":
    script, url, locks, latency, *arguments = sys.argv[1:]
    locker = SQLLocker(locks, ttl=LOCK_TTL) if locks else None
    backend = Backend("child", frozenset(), url, locks, float(latency), locker=locker)
    globals()[script](backend, *arguments)
