"""From `publish` to the handler, while nothing else happens."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from benchmarks.bench import Bench
from benchmarks.children import Child
from benchmarks.databases.postgres import PostgresSite, notify_and_claim
from benchmarks.figures import Figure
from benchmarks.work import GROUP, TOPIC, open_queue, p99
from queue_lib import Message, WakeSource

__all__ = ["latency"]

_POLL = 60.0  # seconds: where there are wake-ups, no poll helps
_SHORT_POLL = 0.25  # where there are none
_LULL = 0.1  # seconds in which everybody falls idle: that is what is measured


def latency(bench: Bench, *, other_process: bool) -> Iterator[Figure]:
    """Milliseconds from the publish, here or in another process, to the handler.

    The reference is a bare NOTIFY with a claim; without wake-ups the poll interval.
    """
    arrived = threading.Event()
    took: list[float] = []

    def handle(delivery: Any) -> None:
        took.append((time.time() - float(delivery.payload)) * 1000)
        arrived.set()

    with ExitStack() as stack:
        site = stack.enter_context(bench.site(shared=other_process))
        queue = stack.enter_context(open_queue(store := site.store()))
        poll = _POLL if isinstance(store, WakeSource) or not other_process else _SHORT_POLL
        queue.subscribe(TOPIC, GROUP, handle, poll_interval=poll)
        child = stack.enter_context(Child("publish", site)) if other_process else None
        for _ in range(bench.size.latencies + 1):
            arrived.clear()
            if child is None:
                queue.publish(Message(TOPIC, str(time.time()).encode()))
            else:
                child.say("publish")
            assert arrived.wait(30)
            time.sleep(_LULL)
        del took[0]  # it had to connect first
        queue.close()
        reference, against = None, ""
        if other_process and poll == _SHORT_POLL:
            reference, against = 1000 * poll, "poll"
        elif other_process and isinstance(site, PostgresSite):
            reference, against = notify_and_claim(site, bench.size.latencies), "NOTIFY, claim"
    yield Figure(
        f"latency from {'another' if other_process else 'the same'} process", "ms",
        statistics.median(took), reference, against, {"p99": round(p99(took), 2)},
    )  # fmt: skip
