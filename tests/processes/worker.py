"""A member of a group that writes down what it does, and stops at named points.

Run as a program it is driven over its standard input and output, one line each way::

    pause after claim           stop the next claim once it is applied …
    at after claim              … which is said when somebody has stopped there; here it can be
    go after claim              killed, or let go on; without a point: everywhere
    publish [[["a-0","k",0]]]   publish batches of [id, key, number within the key]
    published                   … all were acknowledged
    subscribe                   start consuming
    unsubscribe 5               stop that, and keep the queue
    close 5                     close the queue and end, as the end of the input does

A point is ``before`` or ``after`` a method of the store, or ``in handler``. On SIGTERM it says
``closing``, closes the queue in the signal handler, and ends.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import sqlalchemy as sa

from queue_lib import (
    Claimed,
    Delivery,
    Message,
    Permanent,
    Store,
    Subscription,
    new_store_queue,
)
from queue_lib.stores.sql.open import open_sql_store
from queue_lib.testing.faults import PAUSE_SECONDS, Pause, PausingStore, StoreWrapper, operations
from tests.processes.log import Log

__all__ = ["DEAD_TOPIC", "GROUPS", "TOPIC", "Member", "Record", "Settings"]

TOPIC, DEAD_TOPIC = "orders", "orders.dead"
GROUPS = ("billing", "audit")

Record = tuple[str, str, int]
"""A message to publish: its id, its key, and its number within the key."""

_TOKEN = "claim-token"  # noqa: S105 - the header in which a handler finds under which claim it runs
_EVENTS = {"ack": "acked", "retry": "retried", "kill": "dead", "extend": "extended"}
_LOSS = re.compile(r"lease is lost|lease was lost|left to end|leases end")
_DELIVERY_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a member does."""

    url: str
    log: str
    groups: Sequence[str] = GROUPS[:1]
    lease: float = 0.5
    concurrency: int = 1
    max_attempts: int = 3
    max_in_flight: int = 0
    seed: int = 0
    fails: float = 0.0
    """The share of runs that raise."""
    dooms: float = 0.0
    """The share of messages that raise `Permanent`, on each attempt."""
    takes: float = 0.0
    """How long a run takes, in seconds; one in twenty takes longer than a third of the lease."""
    stays: bool = False
    """Runs end only when they are cancelled, and then as they would otherwise."""
    patience: float = PAUSE_SECONDS
    """How long a SIGTERM waits for handlers."""


class Recorder(StoreWrapper):
    """A store that writes down what became of each claim."""

    def __init__(self, store: Store, log: Log) -> None:
        self._log = log
        super().__init__(store)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        asked = time.monotonic_ns()
        answer = super().call(method, *args, **kwargs)
        for operation in operations(method, args, answer):
            self._record(*operation, asked)
        return answer

    def _record(self, method: str, args: tuple[Any, ...], answer: Any, asked: int) -> None:
        if method == "claim":
            self._claimed(answer, asked, args[0].lease.total_seconds())
        elif method == "release":
            self._settled("released", args[0])
        elif method in _EVENTS:
            claims = args[0] if method in ("ack", "extend") else args[:1]
            held = set(answer) if method in ("ack", "extend") else {answer and args[0].delivery_id}
            self._settled(_EVENTS[method], [c for c in claims if c.delivery_id in held], asked)
            self._settled("refused", [c for c in claims if c.delivery_id not in held])

    def _claimed(self, claims: Iterable[Claimed], asked: int, lease: float) -> None:
        for claim in claims:
            message = claim.message
            message.headers = {**(message.headers or {}), _TOKEN: claim.claim_token}
            self._log.write(
                "claimed", token=claim.claim_token, delivery=claim.delivery_id, group=claim.group,
                id=message.id, key=message.key, n=int(message.payload), attempt=claim.attempt,
                asked=asked, lease=int(lease * 1e9),
            )  # fmt: skip

    def _settled(self, event: str, claims: Iterable[Claimed], asked: int = 0) -> None:
        for claim in claims:
            self._log.write(event, token=claim.claim_token, delivery=claim.delivery_id, asked=asked)


class Losses(logging.Handler):
    """Writes down what the library reports: which leases were lost, and any other warning."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if _LOSS.search(text) is None:
            self._log.write("warned", text=text)
            return
        for delivery in set(_DELIVERY_ID.findall(text)) or {None}:  # None: any of this process
            self._log.write("lost", delivery=delivery, text=text)


class Member:
    """A queue on a database, and what it does there, in this process."""

    def __init__(self, settings: Settings, log: Log) -> None:
        self._settings = settings
        self.log = log
        self._reports = Losses(self.log)
        logging.getLogger("queue_lib").addHandler(self._reports)
        store = Recorder(open_sql_store(sa.make_url(settings.url)), self.log)
        self.store = PausingStore(store)
        self.queue = new_store_queue(self.store)
        self._subscriptions: list[Subscription] = []
        self._handler_pauses: list[Pause] = []

    def pause(self, point: str) -> Pause:
        """Stop whoever comes to this point next."""
        when, method = point.split()
        if when != "in":
            return self.store.pause_on(method, applied=when == "after")
        pause = Pause(method, False)
        self._handler_pauses.append(pause)
        return pause

    def publish(self, batches: Iterable[Sequence[Record]]) -> None:
        """Publish each batch in one call; written down before, and again once acknowledged."""
        for batch in batches:
            for event in ("offered", "published"):
                if event == "published":
                    self.queue.publish(
                        *(Message(TOPIC, str(n).encode(), key, id) for id, key, n in batch)
                    )
                for id, key, n in batch:
                    self.log.write(event, id=id, key=key, n=n)

    def subscribe(self) -> None:
        """Start consuming, in each of the groups."""
        settings = self._settings
        for group in settings.groups:
            subscription = self.queue.subscribe(
                TOPIC, group, self._handle, concurrency=settings.concurrency, poll_interval=0.05,
                lease_duration=settings.lease, max_attempts=settings.max_attempts,
                backoff_base=0.01, backoff_max=0.05, dead_letter_topic=DEAD_TOPIC,
                max_in_flight=settings.max_in_flight,
            )  # fmt: skip
            self._subscriptions.append(subscription)

    def unsubscribe(self, timeout: float) -> None:
        """Stop consuming; the queue stays open."""
        for subscription in self._subscriptions:
            subscription.close(timeout)

    def close(self, timeout: float) -> bool:
        """Close the queue; say whether all handlers had ended."""
        ended = self.queue.close(timeout)
        logging.getLogger("queue_lib").removeHandler(self._reports)
        return ended

    def _handle(self, delivery: Delivery) -> None:
        settings = self._settings
        run = {"token": (delivery.headers or {})[_TOKEN], "delivery": delivery.delivery_id}
        self.log.write(
            "start", **run, group=delivery.group, id=delivery.id, key=delivery.key,
            n=int(delivery.payload), attempt=delivery.attempt,
        )  # fmt: skip
        if self._handler_pauses:
            self._handler_pauses.pop(0).stop()
        # Whichever process runs it: a message behaves the same.
        chance = Random(f"{settings.seed} {delivery.group} {delivery.id}")
        doomed, long = chance.random() < settings.dooms, chance.random() < 0.05
        failed = Random(f"{chance.random()} {delivery.attempt}").random() < settings.fails
        takes = settings.lease * 0.7 if long and settings.takes else settings.takes
        delivery.cancelled.wait(PAUSE_SECONDS if settings.stays else takes)
        outcome = "doomed" if doomed else "raised" if failed else "returned"
        self.log.write("end", **run, outcome=outcome, cancelled=delivery.cancel_reason)
        if doomed:
            raise Permanent("doomed")
        if failed:
            raise ValueError("made to fail")


class _Program:
    """The child: a member that obeys its standard input."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._member = Member(settings, Log(settings.log))
        self._pauses: list[tuple[str, Pause]] = []
        self._commands: dict[str, Callable[[str], None]] = {
            "pause": self._pause,
            "go": self._go,
            "publish": self._publish,
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "close": self._close,
        }
        self._told = threading.Event()  # to end
        self._timeout = 0.0
        self._failed = False

    def run(self) -> bool:
        """Do as told until told to end; say whether a command failed."""
        signal.signal(signal.SIGTERM, self._terminate)
        threading.Thread(target=self._obey, name="commands", daemon=True).start()
        _say("ready")
        self._told.wait()
        self._member.close(self._timeout)
        return self._failed

    def _terminate(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _say("closing")
        self._member.close(self._settings.patience)
        sys.exit(0)

    def _obey(self) -> None:
        try:
            # Not sys.stdin: the interpreter would wait at its end for whoever reads from that.
            for line in open(0, closefd=False):  # noqa: SIM115 - nor may it be closed
                command, _, argument = line.strip().partition(" ")
                self._commands[command](argument)
        except BaseException:
            self._failed = True
            raise
        finally:
            self._told.set()

    def _pause(self, point: str) -> None:
        pause = self._member.pause(point)
        self._pauses.append((point, pause))

        def watch() -> None:
            pause.wait_reached()
            _say(f"at {point}")

        threading.Thread(target=watch, name=f"at {point}", daemon=True).start()

    def _go(self, to: str) -> None:
        for point, pause in self._pauses:
            if to in ("", point):
                pause.resume()

    def _publish(self, batches: str) -> None:
        self._member.publish(json.loads(batches))
        _say("published")

    def _subscribe(self, _: str) -> None:
        self._member.subscribe()
        _say("subscribed")

    def _unsubscribe(self, timeout: str) -> None:
        self._member.unsubscribe(float(timeout))
        _say("unsubscribed")

    def _close(self, timeout: str) -> None:
        self._timeout = float(timeout)
        self._told.set()


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # whole, whichever threads have something to say


if __name__ == "__main__":
    sys.exit(_Program(Settings(**json.loads(sys.argv[1]))).run())
