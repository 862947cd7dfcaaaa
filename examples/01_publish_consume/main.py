"""Publish to a topic: every consumer group gets every message."""

from __future__ import annotations

import tempfile
from queue import SimpleQueue

from queue_lib import Delivery, Message, open_queue

lines: SimpleQueue[str] = SimpleQueue()


def charge(delivery: Delivery) -> None:
    lines.put(f"billing   charges for {delivery.payload.decode()}")


def pack(delivery: Delivery) -> None:
    lines.put(f"warehouse packs {delivery.payload.decode()}")


def main(url: str) -> None:
    with open_queue(url, migrate=True) as queue:
        # A new group gets what is published from now on, so subscribe before publishing.
        queue.subscribe("orders", "billing", charge)
        queue.subscribe("orders", "warehouse", pack)
        for item in ("cocoa", "coffee", "tea"):
            queue.publish(Message("orders", item.encode()))
        for line in sorted(lines.get(timeout=30) for _ in range(6)):
            print(line)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(f"sqlite:///{folder}/shop.db")
