"""A tour of the queue in eight seconds. Run it in a terminal, or pipe it into a file."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from queue_lib import Delivery, Message, Permanent, open_queue
from queue_lib.engine.queue import StoreQueue

TOPIC, DEAD = "orders", "orders.dead"
STYLES = {"billing": "cyan", "warehouse": "green", "support": "magenta", "publish": "bold"}
GROUPS = ("billing", "warehouse")
CUSTOMERS, STEPS = ("anna", "ben", "cleo"), ("placed", "changed", "confirmed")
MAX_ATTEMPTS = 3
DEADLINE = 30.0  # in seconds; far beyond what the tour takes


class Show:
    """Tells what happens, as it happens. Thread-safe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.monotonic()
        self._lock = Lock()
        self.lanes: dict[str, list[str]] = defaultdict(list)  # what was handled; guarded by _lock

    def say(self, who: str, text: str, style: str = "") -> None:
        clock = f"{time.monotonic() - self._start:4.1f} s  "
        name = (f"{who:10}", STYLES[who])
        self._console.print(Text.assemble((clock, "dim"), name, (text, style)), soft_wrap=True)

    def handler(self, fails: Callable[[Delivery], Exception | None]) -> Callable[[Delivery], None]:
        """Make a handler that works for a moment, and then raises what `fails` returns."""

        def handle(delivery: Delivery) -> None:
            time.sleep(0.25)  # the work
            what = f"{delivery.key:5} {delivery.payload.decode():14}"
            error = fails(delivery)
            if error is None:
                with self._lock:
                    self.lanes[f"{delivery.group} {delivery.key}"].append(delivery.payload.decode())
                self.say(delivery.group, f"{what} done")
                return
            final = isinstance(error, Permanent) or delivery.attempt == MAX_ATTEMPTS
            then = "gives up" if final else "retries"
            tried = f"attempt {delivery.attempt} of {MAX_ATTEMPTS}"
            text = f"{what} {tried} failed, {then}: {error}"
            self.say(delivery.group, text, "red" if final else "yellow")
            raise error

        return handle

    def dead_letter(self, copy: Delivery) -> None:
        headers = sorted((copy.headers or {}).items())
        lines = [f"{'':6}{copy.payload.decode():14} is a dead letter:"]
        lines += [f"{'':20}{name}: {value}" for name, value in headers]
        self.say("support", "\n".join(lines), "magenta")


def billing_fails(delivery: Delivery) -> Exception | None:
    if delivery.payload == b"gift card":
        return Permanent("gift cards are not sold any more")
    if (delivery.key, delivery.payload) == ("ben", b"changed") and delivery.attempt < MAX_ATTEMPTS:
        return ConnectionError("the bank does not answer")  # ben's next steps wait for this one
    return None


def warehouse_fails(delivery: Delivery) -> Exception | None:
    return ValueError("does not fit") if delivery.payload == b"grand piano" else None


def messages() -> list[Message]:
    now = datetime.now(UTC)
    keyed = [Message(TOPIC, step.encode(), key=name) for step in STEPS for name in CUSTOMERS]
    bad = [Message(TOPIC, b"gift card"), Message(TOPIC, b"grand piano")]
    later = [
        Message(TOPIC, f"due in {seconds} s".encode(), deliver_at=now + timedelta(seconds=seconds))
        for seconds in (3, 6)
    ]
    return keyed + bad + later


def tour(queue: StoreQueue, console: Console) -> bool:
    """Publish, consume, and watch until everything is handled or dead; say whether it is."""
    show = Show(console)
    queue.subscribe(DEAD, "support", show.dead_letter)
    for group, fails in zip(GROUPS, (billing_fails, warehouse_fails), strict=True):
        queue.subscribe(
            TOPIC, group, show.handler(fails), concurrency=2, max_attempts=MAX_ATTEMPTS,
            backoff_base=0.8, dead_letter_topic=DEAD,
        )  # fmt: skip
    published = messages()
    queue.publish(*published)
    show.say("publish", "3 steps of 3 customers, 2 orders that must fail, 2 for later")
    finished = watch(queue, console, len(published))
    report(queue, console, show)
    return finished


def watch(queue: StoreQueue, console: Console, total: int) -> bool:
    columns = (
        TextColumn("{task.description:9}"), BarColumn(20), MofNCompleteColumn(),
        TextColumn("{task.fields[rest]}"),
    )  # fmt: skip
    deadline = time.monotonic() + DEADLINE
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bars: dict[str, TaskID] = {
            group: progress.add_task(group, total=total, rest="") for group in GROUPS
        }
        while time.monotonic() < deadline:
            left = queue.stats(DEAD, "support").pending + queue.stats(DEAD, "support").leased
            for group, bar in bars.items():
                now = queue.group_stats(TOPIC, group)
                open_ = now.ready + now.scheduled + now.retrying + now.behind_key + now.leased
                parts = {
                    "running": now.leased, "ready": now.ready, "retrying": now.retrying,
                    "behind their key": now.behind_key, "scheduled": now.scheduled,
                    "dead": now.dead,
                }  # fmt: skip
                rest = ", ".join(f"{count} {what}" for what, count in parts.items() if count)
                progress.update(bar, completed=total - open_, rest=rest)
                left += open_
            if not left:
                return True
            time.sleep(0.1)
    return False


def report(queue: StoreQueue, console: Console, show: Show) -> None:
    order = Table("group and key", "handled, in this order", title="Order per key")
    for lane, steps in sorted(show.lanes.items()):
        if not lane.endswith(" "):
            order.add_row(lane, ", ".join(steps))
    totals = Table("group", "pending", "leased", "dead", title="Stats")
    for group in GROUPS:
        stats = queue.stats(TOPIC, group)
        totals.add_row(group, str(stats.pending), str(stats.leased), str(stats.dead))
    console.print(order, totals)


def main() -> int:
    # Each failure is logged with its traceback; the tour tells the story itself.
    logging.getLogger("queue_lib").setLevel(logging.CRITICAL)
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="queue-lib-demo-") as folder:
        path = Path(folder) / "demo.db"
        console.print(f"A queue in the SQLite file {path}", soft_wrap=True)
        with open_queue(f"sqlite:///{path}", migrate=True) as queue:
            finished = tour(queue, console)
    console.print("Closed: every handler ended." if finished else "This took too long.")
    return 0 if finished else 1


if __name__ == "__main__":
    sys.exit(main())
