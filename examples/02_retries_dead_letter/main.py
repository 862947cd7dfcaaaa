"""A handler that fails: retries with backoff, then the dead letter; or the dead letter at once."""

from __future__ import annotations

import logging
import tempfile
from collections import defaultdict
from queue import SimpleQueue

from queue_lib import (
    HEADER_DEAD_LETTER_ATTEMPTS,
    HEADER_DEAD_LETTER_ERROR,
    HEADER_DEAD_LETTER_GROUP,
    HEADER_DEAD_LETTER_SOURCE_TOPIC,
    Delivery,
    Message,
    Permanent,
    open_queue,
)

story: dict[str, list[str]] = defaultdict(list)  # what happened to each payment
ended: SimpleQueue[str] = SimpleQueue()


def pay(delivery: Delivery) -> None:
    name = delivery.payload.decode()
    story[name].append(f"attempt {delivery.attempt}")
    if name == "no such card":
        raise Permanent("the bank does not know this card")  # trying again cannot help
    if name == "bank is down" or delivery.attempt < 3:
        raise ConnectionError("the bank does not answer")
    story[name].append("paid")
    ended.put(name)


def look_at(dead: Delivery) -> None:
    name, headers = dead.payload.decode(), dead.headers or {}
    story[name].append(
        f"dead letter from {headers[HEADER_DEAD_LETTER_SOURCE_TOPIC]}"
        f" to {headers[HEADER_DEAD_LETTER_GROUP]}"
        f" after {headers[HEADER_DEAD_LETTER_ATTEMPTS]}: {headers[HEADER_DEAD_LETTER_ERROR]}"
    )
    ended.put(name)


def main(url: str) -> None:
    with open_queue(url, migrate=True) as queue:
        queue.subscribe("payments.dead", "support", look_at)
        queue.subscribe(
            "payments",
            "bank",
            pay,
            max_attempts=4,
            backoff_base=0.05,  # seconds; the default is one, doubled for each further attempt
            dead_letter_topic="payments.dead",
        )
        names = ("bank hiccups", "bank is down", "no such card")
        queue.publish(*(Message("payments", name.encode()) for name in names))
        for _ in names:
            ended.get(timeout=30)
        for name in names:
            print(f"{name}: {', '.join(story[name])}")
        print(f"dead: {queue.stats('payments', 'bank').dead}")


if __name__ == "__main__":
    # Each failed attempt is logged with its traceback; here the story is enough.
    logging.getLogger("queue_lib").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        main(f"sqlite:///{folder}/payments.db")
