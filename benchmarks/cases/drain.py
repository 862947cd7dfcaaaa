"""Consuming with handlers that do nothing: in one process at several concurrencies, and in many."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

from benchmarks.bench import Bench
from benchmarks.children import Child
from benchmarks.databases import Site
from benchmarks.figures import Figure
from benchmarks.work import (
    GROUP,
    LEASE,
    PATIENCE,
    TOPIC,
    alternate,
    append,
    drain,
    open_queue,
    register,
    timed,
)
from queue_lib import ClaimRequest

__all__ = ["claim_and_ack", "drain_at", "drain_keyed", "drain_processes"]

_KEYS = 1000
_CONCURRENCY = 64  # of keyed drains, and of each of several processes


def claim_and_ack(bench: Bench, batch: int = 32) -> Iterator[Figure]:
    """Messages a second through claim and acknowledgement, without the engine."""
    loops = bench.size.claims
    request = ClaimRequest(TOPIC, GROUP, "bench", batch, LEASE)
    with (
        bench.site() as site,
        closing(site.store()) as store,
        closing(site.floor()) as floor,
    ):
        register(store)

        def ours() -> float:
            append(store, loops * batch)
            return loops * batch / timed(lambda: store.ack(store.claim(request)), loops)

        def theirs() -> float:
            floor.fill(loops * batch)
            return loops * batch / timed(lambda: floor.claim_and_ack(batch), loops)

        rates = alternate(bench.size.rounds, ours, theirs)
        left = store.stats(TOPIC, GROUP).pending
    yield Figure(f"claim + ack of {batch}", "/s", *rates, more={"left": left})


def drain_at(bench: Bench, concurrency: int) -> Iterator[Figure]:
    """Messages a second, end to end, against a bare loop that settles and claims in one step."""
    count = bench.size.drain
    loops = -(-count // concurrency) + 1  # the last settles only
    with bench.site() as site, closing(site.floor()) as floor:
        sent = _statements(site, count, concurrency)
        with open_queue(store := site.store()) as queue:

            def ours() -> float:
                append(store, count)
                return count / drain(queue, count, concurrency)

            def theirs() -> float:
                floor.fill(count)
                return count / timed(lambda: floor.drain(concurrency), loops)

            rates = alternate(max(bench.size.rounds // 2, 1), ours, theirs)
    more = {"statements_per_message": sent}
    yield Figure(f"drain, concurrency {concurrency}", "/s", *rates, more=more)


def _statements(site: Site, count: int, concurrency: int) -> float:
    """Return the statements a message of one drain, which is not timed."""
    with open_queue(store := site.counted()) as queue:
        register(store)
        append(store, count)
        before = store.statements
        drain(queue, count, concurrency)
        return round((store.statements - before) / count, 4)


def drain_keyed(bench: Bench) -> Iterator[Figure]:
    """Messages a second of many keys, against as many without."""
    count = bench.size.drain
    with ExitStack() as stack:

        def rate_of(keys: int) -> float:
            append(stores[keys], count, keys=keys)
            return count / drain(queues[keys], count, _CONCURRENCY)

        sites = {keys: stack.enter_context(bench.site()) for keys in (_KEYS, 0)}
        stores = {keys: site.store() for keys, site in sites.items()}
        queues = {keys: stack.enter_context(open_queue(store)) for keys, store in stores.items()}
        for store in stores.values():
            register(store)
        keyed, unkeyed = alternate(
            max(bench.size.rounds // 2, 1), lambda: rate_of(_KEYS), lambda: rate_of(0)
        )
    name = f"drain, concurrency {_CONCURRENCY}, {_KEYS:,} keys"
    yield Figure(name, "/s", keyed, unkeyed, "unkeyed")


def drain_processes(bench: Bench) -> Iterator[Figure]:
    """Messages a second by several processes, from the first to the last, against the fewest."""
    count, alone = bench.size.shared, None
    for processes in bench.size.processes:
        with bench.site(shared=True) as site, closing(site.store()) as store:
            register(store)
            append(store, count)
            rate, handled = _shared_drain(site, processes, count)
        yield Figure(
            f"drain, processes: {processes}", "/s", rate, alone, f"with {bench.size.processes[0]}",
            more={"handled": handled},
        )  # fmt: skip
        alone = alone or rate


def _shared_drain(site: Site, processes: int, count: int) -> tuple[float, int]:
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child("consume", site, _CONCURRENCY)) for _ in range(processes)
        ]
        for child in children:  # all have opened their queue before the first begins
            assert child.hear() == "ready"
        for child in children:
            child.say("go")
        deadline = time.monotonic() + PATIENCE
        while sum(int(child.hear()) for child in children) < count:  # each speaks again and again
            assert time.monotonic() < deadline
        found = [child.end() for child in children]
    took = max(it["last"] for it in found) - min(it["first"] for it in found if it["handled"])
    handled = sum(it["handled"] for it in found)
    return handled / took, handled
