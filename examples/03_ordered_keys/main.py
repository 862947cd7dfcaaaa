"""Messages with a key are handled one after the other, whatever happens to one of them."""

from __future__ import annotations

import logging
import tempfile
from collections import defaultdict
from queue import SimpleQueue

from queue_lib import Delivery, Message, open_queue

STEPS = ("open", "deposit", "withdraw", "close")
ACCOUNTS = ("anna", "ben", "cleo")

history: dict[str, list[str]] = defaultdict(list)
done: SimpleQueue[str] = SimpleQueue()


def apply(delivery: Delivery) -> None:
    account, step = delivery.key, delivery.payload.decode()
    if (account, step, delivery.attempt) == ("ben", "deposit", 1):
        history[account].append("deposit fails")
        raise TimeoutError("try again")  # ben's later steps wait for it; the others go on
    history[account].append(step)
    done.put(account)


def main(url: str) -> None:
    with open_queue(url, migrate=True) as queue:
        queue.subscribe("accounts", "ledger", apply, concurrency=8, backoff_base=0.2)
        queue.publish(
            *(
                Message("accounts", step.encode(), key=account)
                for step in STEPS
                for account in ACCOUNTS
            )
        )
        for _ in range(len(STEPS) * len(ACCOUNTS)):
            done.get(timeout=30)
    for account in ACCOUNTS:
        print(f"{account}: {', '.join(history[account])}")


if __name__ == "__main__":
    logging.getLogger("queue_lib").setLevel(logging.ERROR)  # one attempt fails on purpose
    with tempfile.TemporaryDirectory() as folder:
        main(f"sqlite:///{folder}/accounts.db")
