"""Other queues on the same job, each through its own public API, in a process of its own.

The same payloads, the same database server with the same durability, a handler that does nothing.
Each module has `measure(url, size)`, which returns its figures by the names below.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "DRAIN",
    "DRAIN_4",
    "LATENCY",
    "LATENCY_P99",
    "PEERS",
    "PUBLISH_1",
    "PUBLISH_1000",
    "Size",
]

PUBLISH_1 = "publish 1"
PUBLISH_1000 = "publish 1000"
DRAIN_4 = "drain, concurrency 4"
DRAIN = "drain"  # at the concurrency that suits the peer best
LATENCY = "latency p50"
LATENCY_P99 = "latency p99"

PEERS = {
    "postgres": ("procrastinate", "pgqueuer", "awa", "dramatiq"),
    "sqlite": ("huey", "persistqueue", "litequeue"),
}


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    publishes: int = 1_000
    drain: int = 10_000
    latencies: int = 100
    payload: str = "x" * 1024
