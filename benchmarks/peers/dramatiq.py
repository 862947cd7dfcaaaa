"""dramatiq on dramatiq-postgres: threads, LISTEN/NOTIFY. It enqueues one at a time only."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import dramatiq
from dramatiq_postgres import PostgresBroker

from benchmarks.peers import DRAIN, DRAIN_4, PUBLISH_1, Size
from benchmarks.peers.measure import Countdown, latencies, rate

__all__ = ["measure"]


def measure(url: str, size: Size) -> dict[str, float]:
    """See `benchmarks.peers`."""
    script = Path(sys.executable).with_name("dramatiq-postgres")
    subprocess.run([script, "-d", url, "init"], check=True, capture_output=True)
    broker = PostgresBroker(url=url)
    dramatiq.set_broker(broker)
    found: dict[str, float] = {}
    took: list[float] = []

    @dramatiq.actor(queue_name="one")
    def one(payload: str) -> None:
        pass

    @dramatiq.actor(queue_name="timed")
    def timed(at: float) -> None:
        took.append(time.time() - at)

    with rate(size.publishes) as watch:
        for _ in range(size.publishes):
            one.send(size.payload)
    found[PUBLISH_1] = watch.rate
    for name, threads in ((DRAIN_4, 4), (DRAIN, 8)):
        found[name] = _drain(broker, f"drain{threads}", size, threads)
    worker = dramatiq.Worker(broker, queues={"timed"}, worker_threads=4)
    worker.start()
    time.sleep(1)
    for _ in range(size.latencies):
        timed.send(time.time())
        time.sleep(0.1)
    time.sleep(1)
    worker.stop()
    return found | latencies(took)


def _drain(broker: PostgresBroker, queue: str, size: Size, threads: int) -> float:
    count = min(size.drain, 2_000)  # it takes a second for a hundred or so
    countdown = Countdown(count)

    @dramatiq.actor(queue_name=queue, actor_name=queue)
    def nothing(_payload: str) -> None:
        countdown.tick()

    for _ in range(count):
        nothing.send("x" * 100)
    worker = dramatiq.Worker(broker, queues={queue}, worker_threads=threads)
    with rate(count) as watch:
        worker.start()
        countdown.wait()
    worker.stop()
    return watch.rate
