"""What the modules of the peers share: stop watches, and a count that somebody waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.peers import LATENCY, LATENCY_P99

__all__ = ["Countdown", "latencies", "rate"]

WAIT_SECONDS = 300.0


class Watch:
    """Set at the end of the block that `rate` times."""

    rate = 0.0


@contextmanager
def rate(count: int) -> Iterator[Watch]:
    """Time a block that does `count` things."""
    watch, started = Watch(), time.perf_counter()
    yield watch
    watch.rate = count / (time.perf_counter() - started)


class Countdown:
    """Told of each message by handlers in any thread; `done` is set with the last one."""

    def __init__(self, count: int, done: Callable[[], object] | None = None) -> None:
        self._lock = threading.Lock()
        self._left = count
        self._done = done
        self._ended = threading.Event()

    def tick(self) -> None:
        """One more was handled."""
        with self._lock:
            self._left -= 1
            left = self._left
        if left == 0:
            self._ended.set()
            if self._done is not None:
                self._done()

    def wait(self) -> None:
        """Wait for the last one."""
        assert self._ended.wait(WAIT_SECONDS), f"{self._left} were not handled"


def latencies(seconds: list[float]) -> dict[str, float]:
    """Return the figures of the seconds from publish to handler."""
    ordered = sorted(seconds)
    return {
        LATENCY: 1000 * ordered[len(ordered) // 2],
        LATENCY_P99: 1000 * ordered[int(len(ordered) * 0.99)],
    }
