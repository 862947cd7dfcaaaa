"""pgqueuer: asyncio on asyncpg, LISTEN/NOTIFY by triggers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.queries import Queries

from benchmarks.peers import DRAIN, DRAIN_4, PUBLISH_1, PUBLISH_1000, Size
from benchmarks.peers.measure import Countdown, latencies, rate

__all__ = ["measure"]


def measure(url: str, size: Size) -> dict[str, float]:
    """See `benchmarks.peers`."""
    return asyncio.run(_measure(url, size))


async def _measure(url: str, size: Size) -> dict[str, float]:
    async with asyncpg.create_pool(url, min_size=4, max_size=20) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        await queries.install()
        found: dict[str, float] = {}
        payload = size.payload.encode()
        with rate(size.publishes) as watch:
            for _ in range(size.publishes):
                await queries.enqueue("one", payload)
        found[PUBLISH_1] = watch.rate
        with rate(size.drain) as watch:
            for _ in range(0, size.drain, 1000):
                await queries.enqueue(["many"] * 1000, [payload] * 1000, [0] * 1000)
        found[PUBLISH_1000] = watch.rate
        for name, batch in ((DRAIN_4, 4), (DRAIN, 100)):
            found[name] = await _drain(pool, queries, size, batch)
        return found | latencies(await _timed(pool, queries, size))


async def _drain(pool: Any, queries: Any, size: Size, batch: int) -> float:
    entry, ended = f"drain{batch}", asyncio.Event()
    countdown = Countdown(size.drain, ended.set)
    for _ in range(0, size.drain, 1000):
        await queries.enqueue([entry] * 1000, [b"x" * 100] * 1000, [0] * 1000)
    queuer = PgQueuer(AsyncpgPoolDriver(pool))

    @queuer.entrypoint(entry)
    async def nothing(_job: object) -> None:
        countdown.tick()

    with rate(size.drain) as watch:
        task = asyncio.create_task(queuer.run(batch_size=batch))
        await asyncio.wait_for(ended.wait(), 300)
    await _stop(queuer, task)
    return watch.rate


async def _timed(pool: Any, queries: Any, size: Size) -> list[float]:
    took: list[float] = []
    queuer = PgQueuer(AsyncpgPoolDriver(pool))

    @queuer.entrypoint("timed")
    async def timed(job: Any) -> None:
        took.append(time.time() - float(job.payload))

    task = asyncio.create_task(queuer.run(batch_size=10))
    await asyncio.sleep(1)
    for _ in range(size.latencies):
        await queries.enqueue("timed", str(time.time()).encode())
        await asyncio.sleep(0.1)
    await asyncio.sleep(1)
    await _stop(queuer, task)
    return took


async def _stop(queuer: Any, task: asyncio.Task[None]) -> None:
    queuer.shutdown.set()
    await asyncio.wait([task], timeout=10)
