"""What consumers cost that have nothing, or next to nothing, to do."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.work import GROUP, LEASE, TOPIC, at_rate, nothing, open_queue, register, wait_until
from queue_lib import ClaimRequest

__all__ = ["empty_poll", "herd", "subscriptions"]

_POLL = 1.0  # seconds, the default
_LONG_POLL = 60.0  # so that nothing but wake-ups brings claims about
_SETTLING = 1.5  # seconds in which every subscription has polled once, and threads have started


def empty_poll(bench: Bench, polls: int = 10) -> Iterator[Figure]:
    """Statements for each poll that finds nothing."""
    request = ClaimRequest(TOPIC, GROUP, "bench", 32, LEASE)
    with bench.site() as site, closing(site.counted()) as store:
        register(store)
        store.claim(request)
        before = store.statements
        for _ in range(polls):
            store.claim(request)
        yield Figure("statements an empty poll", "", (store.statements - before) / polls)


def subscriptions(bench: Bench, *, wake: bool) -> Iterator[Figure]:
    """What many idle subscriptions of one process send, and how much of a core they take.

    Statements are counted for each subscription and poll interval, not for each claim: one may
    look for several.
    """
    count = bench.size.subscriptions
    with bench.site() as site, open_queue(store := site.counted(wake=wake)) as queue:
        for number in range(count):
            queue.subscribe(f"{TOPIC}.{number}", GROUP, nothing, poll_interval=_POLL)
        time.sleep(_SETTLING)
        statements, cpu, began = store.statements, _cpu(), time.perf_counter()
        time.sleep(bench.size.idle_seconds)
        seconds = time.perf_counter() - began
        statements, cpu = store.statements - statements, _cpu() - cpu
    name = f"{count} idle subscriptions" + ("" if wake else ", no wake-ups")
    polls = count * seconds / _POLL
    yield Figure(f"{name}: statements a poll", "", statements / polls)
    yield Figure(f"{name}: CPU", "%", 100 * cpu / seconds)


def herd(bench: Bench) -> Iterator[Figure]:
    """Claims for each message of a trickle that many consumers of one group wait for.

    The consumers are on several queues, as in several processes; the publisher is on its own.
    """
    size = bench.size
    handled: list[object] = []
    with ExitStack() as stack:
        site = stack.enter_context(bench.site())
        stores = [site.counted() for _ in range(size.instances)]
        queues = [stack.enter_context(open_queue(store)) for store in stores]
        for number in range(size.consumers):
            queues[number % len(queues)].subscribe(
                TOPIC, GROUP, handled.append, poll_interval=_LONG_POLL
            )
        publisher = stack.enter_context(open_queue(site.store()))
        time.sleep(_SETTLING)
        claims = sum(len(store.batches) for store in stores)
        statements = sum(store.statements for store in stores)
        with at_rate(publisher, size.trickle) as sent:
            time.sleep(size.idle_seconds)
        wait_until(lambda: len(handled) == sent.count)
        claims = sum(len(store.batches) for store in stores) - claims
        statements = sum(store.statements for store in stores) - statements
    yield Figure(
        f"claims a message, {size.consumers} consumers, {size.trickle} messages/s", "",
        claims / sent.count, more={"statements": round(statements / sent.count, 2)},
    )  # fmt: skip


def _cpu() -> float:
    """Return the seconds of all threads of this process, in its own code and in the system's."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
