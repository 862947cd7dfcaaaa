"""What a claim costs, whatever is waiting, lies in front, or is dead and not removed yet."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta

from benchmarks.bench import Bench
from benchmarks.databases import Site
from benchmarks.figures import Figure
from benchmarks.work import GROUP, LEASE, TOPIC, append, register
from queue_lib import ClaimRequest, Store

__all__ = ["SHAPES", "behind_dead_rows", "behind_finished", "claim_at_backlog"]

SHAPES = ("no key", "1,000 keys", "one key, head held", "scheduled", "another group")

_KEYS = {"1,000 keys": 1000, "one key, head held": 1}
_CLAIM = ClaimRequest(TOPIC, GROUP, "bench", 32, LEASE)
_DRAIN = ClaimRequest(TOPIC, GROUP, "bench", 10_000, LEASE)


def claim_at_backlog(bench: Bench, shape: str) -> Iterator[Figure]:
    """Milliseconds of a claim of 32 at growing backlogs, against the smallest with nothing else.

    The shape is of the keys, or of what lies in front of the backlog.
    """
    keys, size = _KEYS.get(shape, 0), 0
    smallest = bench.size.backlogs[0]
    with ExitStack() as stack:
        (large_site, large), (small_site, small) = (_opened(bench, stack) for _ in range(2))
        _put_in_front(bench, large_site, large, shape)
        register(small)
        small_site.fill(smallest, keys=keys)
        for backlog in bench.size.backlogs:
            large_site.fill(backlog - size, keys=keys)
            if size == 0 and shape == "one key, head held":
                assert len(large.claim(_CLAIM)) == len(small.claim(_CLAIM)) == 1
            size = backlog
            took, reference, found = _claim_in_turns(large, small, bench.size.claims)
            yield Figure(
                f"claim of 32 at {backlog:,} ({shape})", "ms", took, reference,
                f"at {smallest:,}", {"claimed": found},
            )  # fmt: skip


def behind_finished(bench: Bench) -> Iterator[Figure]:
    """Milliseconds of a claim of 32 in front of which as many again were claimed and done."""
    backlog = bench.size.backlogs[-1]
    with ExitStack() as stack:
        (_, old), (_, new) = (_opened(bench, stack) for _ in range(2))
        for store in (old, new):
            register(store)
            append(store, backlog)
        while done := old.claim(_DRAIN):
            old.ack(done)
        append(old, backlog)
        took, reference, found = _claim_in_turns(old, new, bench.size.claims)
    yield Figure(
        f"claim of 32 at {backlog:,}, behind as many finished", "ms", took, reference, "fresh",
        {"claimed": found},
    )  # fmt: skip


def behind_dead_rows(bench: Bench) -> Iterator[Figure]:
    """Milliseconds of a claim of 32 behind rows that an open transaction keeps from removal."""
    dead, backlog = bench.size.dead, bench.size.backlogs[0]
    with ExitStack() as stack:
        (old_site, old), (new_site, new) = (_opened(bench, stack) for _ in range(2))
        register(old)
        register(new)
        stack.enter_context(old_site.hold_open())
        old_site.fill(dead)
        with closing(old_site.floor()) as floor:
            while floor.claim_and_ack(1000):
                pass
        for site in (old_site, new_site):
            site.fill(backlog)
        first, _ = _claim(old)
        took, reference, found = _claim_in_turns(old, new, bench.size.claims)
    yield Figure(
        f"claim of 32 behind {dead:,} dead rows", "ms", took, reference, "fresh",
        {"the_first": round(first, 2), "claimed": found},
    )  # fmt: skip


def _opened(bench: Bench, stack: ExitStack) -> tuple[Site, Store]:
    site = stack.enter_context(bench.site())
    return site, stack.enter_context(closing(site.store()))


def _put_in_front(bench: Bench, site: Site, store: Store, shape: str) -> None:
    scheduled, of_another = bench.size.in_front
    if shape == "another group":
        register(store, "another")
        site.fill(of_another)
    register(store)
    if shape == "scheduled":
        site.fill(scheduled, due_in=timedelta(days=6))


def _claim_in_turns(ours: Store, theirs: Store, times: int) -> tuple[float, float, int]:
    """Return the median milliseconds of claims on both, and how much came from `ours`."""
    found = [(_claim(ours), _claim(theirs)) for _ in range(times)]
    left, right = ([took for took, _ in side] for side in zip(*found, strict=True))
    return statistics.median(left), statistics.median(right), sum(it[0][1] for it in found)


def _claim(store: Store) -> tuple[float, int]:
    """Claim and acknowledge; return the milliseconds of the claim, and how much came."""
    started = time.perf_counter()
    claims = store.claim(_CLAIM)
    took = 1000 * (time.perf_counter() - started)
    return took, len(store.ack(claims))
