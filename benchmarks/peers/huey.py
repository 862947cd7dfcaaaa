"""huey on SQLite, with fsync; threads that poll. It enqueues one at a time only."""

from __future__ import annotations

import time
from typing import Any

from huey import SqliteHuey

from benchmarks.peers import DRAIN, DRAIN_4, PUBLISH_1, Size
from benchmarks.peers.measure import Countdown, latencies, rate

__all__ = ["measure"]


def measure(url: str, size: Size) -> dict[str, float]:
    """See `benchmarks.peers`."""
    took: list[float] = []
    app = SqliteHuey("one", filename=url, fsync=True)

    @app.task()
    def one(_payload: str) -> None:
        pass

    with rate(size.publishes) as watch:
        for _ in range(size.publishes):
            one(size.payload)
    drained = _drain(url, size)
    app = SqliteHuey("timed", filename=url, fsync=True)

    @app.task()
    def timed(at: float) -> None:
        took.append(time.time() - at)

    consumer = _started(app)
    for _ in range(size.latencies):
        timed(time.time())
        time.sleep(0.1)
    time.sleep(1)
    consumer.stop()
    return {PUBLISH_1: watch.rate, DRAIN_4: drained, DRAIN: drained, **latencies(took)}


def _drain(url: str, size: Size) -> float:
    app = SqliteHuey("drain", filename=url, fsync=True)
    countdown = Countdown(size.drain)

    @app.task()
    def nothing(_payload: str) -> None:
        countdown.tick()

    for _ in range(size.drain):
        nothing("x" * 100)
    with rate(size.drain) as watch:
        consumer = _started(app)
        countdown.wait()
    consumer.stop()
    return watch.rate


def _started(app: SqliteHuey) -> Any:
    consumer = app.create_consumer(workers=4, periodic=False, initial_delay=0.01)
    consumer.start()
    return consumer
