"""procrastinate: asyncio on psycopg, LISTEN/NOTIFY."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import procrastinate

from benchmarks.peers import DRAIN, DRAIN_4, PUBLISH_1, PUBLISH_1000, Size
from benchmarks.peers.measure import latencies, rate

__all__ = ["measure"]


def measure(url: str, size: Size) -> dict[str, float]:
    """See `benchmarks.peers`."""
    return asyncio.run(_measure(url, size))


async def _measure(url: str, size: Size) -> dict[str, float]:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
    found: dict[str, float] = {}
    took: list[float] = []

    @app.task(name="nothing", queue="drain")
    def nothing(payload: str) -> None:
        pass

    @app.task(name="timed", queue="timed")
    def timed(at: float) -> None:
        took.append(time.time() - at)

    async def work(concurrency: int) -> None:
        await app.run_worker_async(
            queues=["drain"], wait=False, concurrency=concurrency, install_signal_handlers=False
        )

    count = min(size.drain, 2_000)  # it takes a second for a few hundred

    async def fill() -> None:
        for _ in range(0, count, 1000):
            await nothing.batch_defer_async(*[{"payload": "x" * 100}] * 1000)

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        with rate(size.publishes) as watch:
            for _ in range(size.publishes):
                await nothing.defer_async(payload=size.payload)
        found[PUBLISH_1] = watch.rate
        with rate(count) as watch:
            for _ in range(0, count, 1000):
                await nothing.batch_defer_async(*[{"payload": size.payload}] * 1000)
        found[PUBLISH_1000] = watch.rate
        await work(20)
        for name, concurrency in ((DRAIN_4, 4), (DRAIN, 20)):
            await fill()
            with rate(count) as watch:
                await work(concurrency)
            found[name] = watch.rate
        worker = asyncio.create_task(_listen(app))
        await asyncio.sleep(1)
        for _ in range(size.latencies):
            await timed.defer_async(at=time.time())
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    return found | latencies(took)


async def _listen(app: Any) -> None:
    await app.run_worker_async(
        queues=["timed"], wait=True, concurrency=4, install_signal_handlers=False
    )
