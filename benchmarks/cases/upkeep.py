"""What is looked at and tidied up while work goes on: statistics, purges."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.work import GROUP, LEASE, TOPIC, at_rate, open_queue, p99, register, timed
from queue_lib import ClaimRequest, PurgePolicy, Store
from queue_lib.engine.upkeep import PURGE_BATCH

__all__ = ["purge", "stats"]

_LOOKS = 5
_CLAIM = ClaimRequest(TOPIC, GROUP, "bench", 32, LEASE)
_PAUSE = 0.01  # seconds between two claims
_POLICY = PurgePolicy(dead_retention=timedelta(days=7), acked_retention=timedelta(days=1))


def stats(bench: Bench) -> Iterator[Figure]:
    """Milliseconds of `stats` of a group with many pending deliveries, behind many finished."""
    finished, pending = bench.size.finished, bench.size.pending
    with bench.site() as site, closing(site.store()) as store:
        site.fill(finished)
        register(store)
        site.fill(pending)
        took = [1000 * timed(lambda: store.stats(TOPIC, GROUP)) for _ in range(_LOOKS)]
        counted = store.stats(TOPIC, GROUP)
    yield Figure(
        f"stats of {pending:,} behind {finished:,} finished", "ms", statistics.median(took),
        more={"pending": counted.pending},
    )  # fmt: skip


def purge(bench: Bench) -> Iterator[Figure]:
    """The 99th of 100 claims, in milliseconds, during a purge of many rows; against before it.

    All the while there is steady traffic. The purge is in batches, as the janitor's.
    """
    purged, rate = bench.size.purged, bench.size.rate
    with bench.site() as site, open_queue(store := site.store()) as queue:
        site.fill(purged, age=2 * _POLICY.acked_retention)
        register(store)
        with ThreadPoolExecutor(1) as pool, at_rate(queue, rate):
            before_end = time.monotonic() + bench.size.idle_seconds
            before = _claims(store, lambda: time.monotonic() < before_end)
            started = time.monotonic()
            purging = pool.submit(_purge, store)
            during = _claims(store, lambda: not purging.done())
            gone, took = purging.result(), time.monotonic() - started
    yield Figure(
        f"claim of 32 during a purge of {purged:,}, p99", "ms", p99(during), p99(before),
        "before it", {"p50": round(statistics.median(during), 2), "claims": len(during)},
    )  # fmt: skip
    yield Figure("purge", "/s", gone / took, more={"rows": gone})


def _purge(store: Store) -> int:
    gone = 0
    while batch := store.purge(_POLICY, PURGE_BATCH):
        gone += batch
    return gone


def _claims(store: Store, go_on: Callable[[], bool]) -> list[float]:
    """Claim and acknowledge while it is worth while; return the milliseconds of each claim."""
    took = []
    while go_on():
        started = time.perf_counter()
        claims = store.claim(_CLAIM)
        took.append(1000 * (time.perf_counter() - started))
        store.ack(claims)
        time.sleep(_PAUSE)
    return took
