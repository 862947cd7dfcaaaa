"""What another process of a case does: `python -m benchmarks.child TASK URL LOCKER [NUMBER …]`.

It is told what to do by lines, ends when they end, and its last line is JSON. See
`benchmarks.children`.
"""

from __future__ import annotations

import itertools
import json
import select
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.work import GROUP, PATIENCE, TOPIC
from queue_lib import Message, StoreQueue, open_queue
from queue_lib.lockers.sql import SQLLocker

_REPORT_SECONDS = 0.1


def publish(queue: StoreQueue) -> dict[str, float]:
    """Publish the time for each line."""
    published = 0
    for _ in sys.stdin:
        queue.publish(Message(TOPIC, str(time.time()).encode()))
        published += 1
    return {"published": published}


def consume(queue: StoreQueue, concurrency: int) -> dict[str, float]:
    """Wait for a line, then consume, and say time and again how many were handled."""
    moments: list[float] = []
    queue.ping()  # is connected
    print("ready", flush=True)
    sys.stdin.readline()
    queue.subscribe(
        TOPIC, GROUP, lambda _: moments.append(time.time()),
        concurrency=concurrency, batch_size=concurrency,
    )  # fmt: skip
    while not select.select([sys.stdin], [], [], _REPORT_SECONDS)[0]:
        print(len(moments), flush=True)
    queue.close()
    first, last = (min(moments), max(moments)) if moments else (0.0, 0.0)
    return {"handled": len(moments), "first": first, "last": last}


def remember(queue: StoreQueue, concurrency: int, count: int) -> dict[str, float]:
    """Consume `count` messages, and watch the memory of this process. Linux."""
    handled, done = itertools.count(1), threading.Event()
    before, halfway = _memory("VmRSS"), 0

    def handle(_: object) -> None:
        nonlocal halfway
        number = next(handled)
        if number == count // 2:
            halfway = _memory("VmHWM")
        elif number == count:
            done.set()

    queue.subscribe(TOPIC, GROUP, handle, concurrency=concurrency, batch_size=concurrency)
    assert done.wait(PATIENCE)
    peak = _memory("VmHWM")
    return {"handled": count, "halfway": halfway - before, "peak": peak - before}


def _memory(name: str) -> int:
    """Return the bytes that are resident (`VmRSS`), or were at most (`VmHWM`)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return 1024 * int(value)


_TASKS: dict[str, Callable[..., dict[str, float]]] = {
    task.__name__: task for task in (publish, consume, remember)
}

if __name__ == "__main__":
    name, url, locker, *numbers = sys.argv[1:]
    with open_queue(url, locker=SQLLocker(locker) if locker else None) as queue:
        answer = _TASKS[name](queue, *map(int, numbers))
    print(json.dumps(answer))
