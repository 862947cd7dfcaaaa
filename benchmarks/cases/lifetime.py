"""Throughput late in the life of a queue: after a million messages, behind a forgotten session."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.bench import Bench
from benchmarks.databases import Site
from benchmarks.figures import Figure
from benchmarks.work import (
    GROUP,
    TOPIC,
    alternate,
    at_rate,
    nothing,
    open_queue,
    register,
    traffic,
    wait_until,
)
from queue_lib import Stats, StoreQueue

__all__ = ["after_many", "while_held_open"]

_SAMPLES = 3
_RECOVERED = 0.8
_LOOKS = 12  # at the throughput, in as long as the transaction was open


def after_many(bench: Bench) -> Iterator[Figure]:
    """Messages a second, published and consumed at once, after many others; against a new queue."""
    size = bench.size
    with ExitStack() as stack:
        (_, old), (_, new) = (_opened(bench, stack) for _ in range(2))
        for _ in range(0, size.through, size.drain):
            traffic(old, size.drain)
        rate, reference = alternate(
            size.rounds, lambda: traffic(old, size.drain), lambda: traffic(new, size.drain)
        )
    yield Figure(f"throughput after {size.through:,}", "/s", rate, reference, "fresh")


def while_held_open(bench: Bench) -> Iterator[Figure]:
    """Messages a second late in a foreign transaction, and after its end; against another queue.

    Before it is measured there is steady traffic: what is held back grows with time.
    """
    size = bench.size
    seconds = 60 * size.minutes
    with ExitStack() as stack:
        (site, queue), (_, other) = (_opened(bench, stack) for _ in range(2))

        def sample() -> tuple[float, float]:
            return alternate(
                _SAMPLES, lambda: traffic(queue, size.drain), lambda: traffic(other, size.drain)
            )

        with site.hold_open():
            _steady(queue, size.rate, seconds)
            during, reference = sample()
        name = f"throughput, a transaction open for {size.minutes:g} min"
        yield Figure(name, "/s", during, reference, "without")
        ended = time.monotonic()
        after, reference = sample()
        at_once = after
        while after < _RECOVERED * reference and time.monotonic() < ended + seconds:
            _steady(queue, size.rate, seconds / _LOOKS)
            after, reference = sample()
        yield Figure(
            "throughput, that transaction ended", "/s", after, reference, "without",
            {"at_once": round(at_once), "seconds": round(time.monotonic() - ended)},
        )  # fmt: skip


def _opened(bench: Bench, stack: ExitStack) -> tuple[Site, StoreQueue]:
    site = stack.enter_context(bench.site())
    queue = stack.enter_context(open_queue(store := site.store()))
    register(store)
    return site, queue


def _steady(queue: StoreQueue, rate: float, seconds: float) -> None:
    subscription = queue.subscribe(TOPIC, GROUP, nothing, concurrency=64, batch_size=64)
    with at_rate(queue, rate):
        time.sleep(seconds)
    wait_until(lambda: queue.stats(TOPIC, GROUP) == Stats())
    subscription.close()
