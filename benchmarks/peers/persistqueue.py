"""persist-queue: a SQLite queue with acknowledgements, for one process, without handlers."""

from __future__ import annotations

from pathlib import Path

import persistqueue

from benchmarks.peers import DRAIN, DRAIN_4, PUBLISH_1, Size
from benchmarks.peers.measure import rate

__all__ = ["measure"]


def measure(url: str, size: Size) -> dict[str, float]:
    """See `benchmarks.peers`."""
    queue = persistqueue.SQLiteAckQueue(
        str(Path(url).with_suffix(".d")), auto_commit=True, multithreading=True
    )
    with rate(size.publishes) as watch:
        for _ in range(size.publishes):
            queue.put(size.payload)
    count = size.publishes  # each takes as long as all that came before
    with rate(count) as drained:
        for _ in range(count):
            queue.ack(queue.get())
    return {PUBLISH_1: watch.rate, DRAIN_4: drained.rate, DRAIN: drained.rate}
