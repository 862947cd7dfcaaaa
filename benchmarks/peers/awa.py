"""awa: a core in Rust, asyncio; enqueues in bulk by COPY."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import awa

from benchmarks.peers import DRAIN, DRAIN_4, PUBLISH_1, PUBLISH_1000, Size
from benchmarks.peers.measure import Countdown, latencies, rate

__all__ = ["measure"]


@dataclass
class Nothing:
    """A job with a payload."""

    payload: str


@dataclass
class Timed:
    """A job that knows when it was made."""

    at: float


def measure(url: str, size: Size) -> dict[str, float]:
    """See `benchmarks.peers`."""
    return asyncio.run(_measure(url, size))


async def _measure(url: str, size: Size) -> dict[str, float]:
    client = awa.AsyncClient(url)
    await client.migrate()
    await client.install_queue_storage()
    found: dict[str, float] = {}
    with rate(size.publishes) as watch:
        for _ in range(size.publishes):
            await client.insert(Nothing(size.payload), queue="one")
    found[PUBLISH_1] = watch.rate
    with rate(size.drain) as watch:
        for _ in range(0, size.drain, 1000):
            await client.enqueue_many_copy([Nothing(size.payload)] * 1000, queue="many")
    found[PUBLISH_1000] = watch.rate
    for name, concurrency in ((DRAIN_4, 4), (DRAIN, 100)):
        found[name] = await _drain(url, size, concurrency)
    return found | latencies(await _timed(url, size))


async def _drain(url: str, size: Size, concurrency: int) -> float:
    client: Any = awa.AsyncClient(url)
    queue, ended = f"drain{concurrency}", asyncio.Event()
    countdown = Countdown(size.drain, ended.set)
    for _ in range(0, size.drain, 1000):
        await client.enqueue_many_copy([Nothing("x" * 100)] * 1000, queue=queue)

    @client.task(Nothing, queue=queue)
    async def nothing(_job: object) -> None:
        countdown.tick()

    with rate(size.drain) as watch:
        await client.start([(queue, concurrency)])
        await asyncio.wait_for(ended.wait(), 300)
    await client.shutdown()
    return watch.rate


async def _timed(url: str, size: Size) -> list[float]:
    client: Any = awa.AsyncClient(url)
    took: list[float] = []

    @client.task(Timed, queue="timed")
    async def timed(job: Any) -> None:
        took.append(time.time() - job.args.at)

    await client.start([("timed", 10)])
    await asyncio.sleep(1)
    for _ in range(size.latencies):
        await client.insert(Timed(time.time()), queue="timed")
        await asyncio.sleep(0.1)
    await asyncio.sleep(1)
    await client.shutdown()
    return took
