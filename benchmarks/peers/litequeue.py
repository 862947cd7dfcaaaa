"""litequeue: a SQLite queue with claims, without handlers and threads."""

from __future__ import annotations

from litequeue import LiteQueue

from benchmarks.peers import DRAIN, DRAIN_4, PUBLISH_1, Size
from benchmarks.peers.measure import rate

__all__ = ["measure"]


def measure(url: str, size: Size) -> dict[str, float]:
    """See `benchmarks.peers`."""
    queue = LiteQueue(url)
    queue.conn.execute("PRAGMA synchronous = FULL")  # as durable as the others
    with rate(size.publishes) as watch:
        for _ in range(size.publishes):
            queue.put(size.payload)
    _drain(queue, size.publishes)
    for _ in range(size.drain):
        queue.put("x" * 100)
    with rate(size.drain) as drained:
        _drain(queue, size.drain)
    return {PUBLISH_1: watch.rate, DRAIN_4: drained.rate, DRAIN: drained.rate}


def _drain(queue: LiteQueue, count: int) -> None:
    for _ in range(count):
        message = queue.pop()
        assert message is not None
        queue.done(message.message_id)
