"""What a queue takes up: bytes a message, memory, and what steady traffic leaves behind."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from benchmarks.bench import Bench
from benchmarks.children import Child
from benchmarks.databases import WAL, Site
from benchmarks.figures import Figure
from benchmarks.work import (
    GROUP,
    PAYLOAD,
    TOPIC,
    append,
    at_rate,
    nothing,
    open_queue,
    p99,
    register,
)
from queue_lib import EngineConfig, Message

__all__ = ["bloat", "bytes_per_message", "memory", "parts"]

_CONCURRENCY = 64
_KEPT_HOURS = 0.005  # 18 seconds: after a minute as much goes as comes
_MEBI = 1 << 20


def bytes_per_message(bench: Bench) -> Iterator[Figure]:
    """Bytes on disk for a pending message of one group, beyond its payload."""
    count = bench.size.drain
    with bench.site() as site, closing(site.store()) as store:
        register(store)
        before = _lasting(site)
        append(store, count)
        grown = (_lasting(site) - before) / count
    yield Figure(f"bytes beside a payload of {len(PAYLOAD)}", "B", grown - len(PAYLOAD))


def _lasting(site: Site) -> int:
    return sum(size for name, size in site.sizes().items() if name != WAL)


def memory(bench: Bench) -> Iterator[Figure]:
    """MiB over what the import took, at most, while part of a large backlog is drained."""
    pending, drained = bench.size.pending, bench.size.drained
    with bench.site(shared=True) as site, closing(site.store()) as store:
        register(store)
        site.fill(pending)
        with Child("remember", site, _CONCURRENCY, drained) as child:
            found = child.end()
    yield Figure(
        f"memory, {pending:,} pending, concurrency {_CONCURRENCY}", "MiB", found["peak"] / _MEBI,
        found["halfway"] / _MEBI, "halfway", {"handled": found["handled"]},
    )  # fmt: skip


def bloat(bench: Bench) -> Iterator[Figure]:
    """MiB of what grows after minutes of steady traffic that is purged; against after the first."""
    seconds = 60 * bench.size.minutes
    first = min(60, seconds / 2)
    config = EngineConfig(janitor_interval=first / 10, acked_retention_hours=_KEPT_HOURS)
    with bench.site() as site, open_queue(site.store(), config) as queue:
        queue.subscribe(TOPIC, GROUP, nothing, concurrency=_CONCURRENCY, batch_size=_CONCURRENCY)
        with at_rate(queue, bench.size.rate):
            time.sleep(first)
            early = site.sizes()
            time.sleep(seconds - first)
            late = site.sizes()
    for name, size in late.items():
        yield Figure(
            f"{name} after {seconds / 60:g} min at {bench.size.rate:,}/s", "MiB", size / _MEBI,
            early[name] / _MEBI, f"after {first:g} s",
        )  # fmt: skip


def parts(bench: Bench, callers: int = 8) -> Iterator[Figure]:
    """The active parts of each table at most, under single publishes at a fixed rate."""
    from benchmarks.databases.clickhouse import ClickHouseSite

    seconds, rate = bench.size.parts_seconds, bench.size.rate
    most: Counter[str] = Counter()
    took: list[float] = []
    with bench.site() as site, open_queue(site.store()) as queue:
        assert isinstance(site, ClickHouseSite)
        queue.subscribe(TOPIC, GROUP, nothing, concurrency=_CONCURRENCY)
        began = time.perf_counter()

        def publish(caller: int) -> None:
            for number in range(caller, int(rate * seconds), callers):
                due = began + number / rate
                time.sleep(max(due - time.perf_counter(), 0))
                queue.publish(Message(TOPIC, PAYLOAD))
                took.append(1000 * (time.perf_counter() - due))  # a late one counts as slow

        with ThreadPoolExecutor(callers) as pool:
            running = [pool.submit(publish, caller) for caller in range(callers)]
            while not all(one.done() for one in running):
                most |= Counter(site.parts())
                time.sleep(0.1)
        for one in running:
            one.result()
    for table, count in most.items():
        yield Figure(f"active parts of {table} at {rate:,}/s", "", count)
    yield Figure(
        f"publish 1 at {rate:,}/s, p50", "ms", statistics.median(took),
        more={"p99": round(p99(took), 2)},
    )  # fmt: skip
