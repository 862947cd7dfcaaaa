"""Two processes share the work of one group on ClickHouse; their locks are in PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
from queue import SimpleQueue

from queue_lib import Delivery, Message, open_queue
from queue_lib.lockers.sql import SQLLocker

COUNT = 20


def work(clickhouse: str, postgres: str) -> None:
    """Be a consumer, until the standard input ends."""
    with SQLLocker(postgres) as locker, open_queue(clickhouse, locker=locker) as queue:

        def deliver(delivery: Delivery) -> None:
            queue.publish(Message("parcels.done", delivery.payload))

        queue.subscribe("parcels", "couriers", deliver)
        print("a courier is ready", flush=True)
        sys.stdin.read()


def main(clickhouse: str, postgres: str) -> None:
    done: SimpleQueue[int] = SimpleQueue()
    with (
        SQLLocker(postgres) as locker,
        open_queue(clickhouse, locker=locker, migrate=True) as queue,
    ):
        queue.subscribe("parcels.done", "office", lambda d: done.put(int(d.payload)))
        couriers = [
            subprocess.Popen(
                [sys.executable, __file__, "courier", clickhouse, postgres],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for courier in couriers:
            assert courier.stdout is not None
            print(courier.stdout.readline(), end="")
        queue.publish(*(Message("parcels", str(number).encode()) for number in range(COUNT)))
        delivered = sorted(done.get(timeout=30) for _ in range(COUNT))
        print("delivered:", *delivered)
        for courier in couriers:
            courier.communicate(timeout=30)  # closes its standard input and waits for its end
            print(f"a courier went home: {courier.returncode}")
        print("left:", queue.stats("parcels", "couriers").pending)


if __name__ == "__main__":
    if sys.argv[1] == "courier":
        work(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
