"""What the cases have done: messages by the thousand, handlers that do nothing, steady traffic."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from queue_lib import EngineConfig, Message, StartFrom, Store, StoreQueue, new_store_queue
from queue_lib.names import new_message_id

__all__ = [
    "GROUP",
    "LEASE",
    "PATIENCE",
    "PAYLOAD",
    "TOPIC",
    "Sent",
    "alternate",
    "append",
    "at_rate",
    "drain",
    "nothing",
    "open_queue",
    "p99",
    "register",
    "timed",
    "together",
    "traffic",
    "wait_until",
]

TOPIC = "bench"
GROUP = "g0"
LEASE = timedelta(seconds=600)
PAYLOAD = b"x" * 100
PATIENCE = 600.0
"""Seconds after which something has gone wrong."""

_NO_JANITOR = EngineConfig(janitor_interval="1h")
_CHUNK = 10_000
_TICK = 0.02  # seconds between the publishes of steady traffic


def nothing(_: object) -> None:
    """Handle a delivery."""


def open_queue(store: Store, config: EngineConfig = _NO_JANITOR) -> StoreQueue:
    """Open a queue, whose janitor stays away unless `config` says otherwise."""
    return new_store_queue(store, config)


def register(store: Store, group: str = GROUP) -> None:
    """Register a group that gets what is published from now on."""
    store.ensure_group(TOPIC, group, StartFrom.LATEST)


def append(store: Store, count: int, *, keys: int = 0) -> None:
    """Publish through the store, without the engine."""
    now = datetime.now(UTC)
    for first in range(0, count, _CHUNK):
        store.append([
            Message(
                TOPIC, PAYLOAD, f"k{number % keys}" if keys else "", new_message_id(),
                published_at=now,
            )
            for number in range(first, min(first + _CHUNK, count))
        ])  # fmt: skip


def drain(queue: StoreQueue, count: int, concurrency: int) -> float:
    """Consume what is there, and wait until it is acknowledged; return the seconds that took."""
    handle, done = _counting(count)
    started = time.perf_counter()
    subscription = queue.subscribe(
        TOPIC, GROUP, handle, concurrency=concurrency, batch_size=concurrency
    )
    assert done.wait(PATIENCE)
    subscription.close()
    return time.perf_counter() - started


def traffic(queue: StoreQueue, count: int) -> float:
    """Publish by the thousand what is consumed at the same time; return messages a second."""
    handle, done = _counting(count)
    subscription = queue.subscribe(TOPIC, GROUP, handle, concurrency=64, batch_size=64)
    started = time.perf_counter()
    for first in range(0, count, 1000):
        queue.publish(*(Message(TOPIC, PAYLOAD) for _ in range(min(1000, count - first))))
    assert done.wait(PATIENCE)
    subscription.close()
    return count / (time.perf_counter() - started)


def _counting(count: int) -> tuple[Callable[[object], None], threading.Event]:
    """Make a handler, and what is set with its last message."""
    handled, done = itertools.count(1), threading.Event()

    def handle(_: object) -> None:
        if next(handled) == count:
            done.set()

    return handle, done


@dataclass
class Sent:
    """How much `at_rate` has published so far."""

    count: int = 0


@contextmanager
def at_rate(queue: StoreQueue, rate: float) -> Iterator[Sent]:
    """Publish `rate` messages a second during the block."""
    sent, stop = Sent(), threading.Event()

    def publish() -> None:
        began = time.monotonic()
        while not stop.wait(_TICK):
            due = min(int((time.monotonic() - began) * rate) - sent.count, 1000)
            if due > 0:
                queue.publish(*(Message(TOPIC, PAYLOAD) for _ in range(due)))
                sent.count += due

    with ThreadPoolExecutor(1) as pool:
        publisher = pool.submit(publish)
        try:
            yield sent
        finally:
            stop.set()
        publisher.result()


def together(threads: int, work: Callable[[int], object]) -> float:
    """Do `work` in several threads, each with its number; return the seconds until all are done."""
    barrier = threading.Barrier(threads + 1)

    def run(number: int) -> None:
        barrier.wait(PATIENCE)
        work(number)

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(run, number) for number in range(threads)]
        barrier.wait(PATIENCE)
        started = time.perf_counter()
        for one in running:
            one.result()
    return time.perf_counter() - started


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what other threads bring about."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "this never came about"
        time.sleep(0.01)


def timed(work: Callable[[], object], times: int = 1) -> float:
    """Return the seconds that `work` takes, so many times."""
    started = time.perf_counter()
    for _ in range(times):
        work()
    return time.perf_counter() - started


def p99(values: Sequence[float]) -> float:
    """Return the value that 99 of 100 do not exceed."""
    return sorted(values)[min(int(len(values) * 0.99), len(values) - 1)]


def alternate(
    rounds: int, ours: Callable[[], float], theirs: Callable[[], float]
) -> tuple[float, float]:
    """Let two sides take turns, so that both see the same weather; return the median of each."""
    found = [(ours(), theirs()) for _ in range(rounds)]
    left, right = zip(*found, strict=True)
    return statistics.median(left), statistics.median(right)
