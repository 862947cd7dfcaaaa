"""The background services of a queue: the janitor, and the listener for other processes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from queue_lib.engine.lifecycle import Service, is_bug
from queue_lib.errors import QueueClosedError, UnsupportedError
from queue_lib.logs import get_logger
from queue_lib.stores.base import PurgePolicy, Store, WakeSource

__all__ = ["PURGE_BATCH", "janitor", "listener"]

PURGE_BATCH = 1000
"""Rows of each kind that one purge deletes at most."""

_LEAST = 50
_BRIEF = 0.005  # seconds that a purge should take: on SQLite nobody else can write meanwhile

_logger = get_logger("queue_lib.engine")


def janitor(store: Store, policy: PurgePolicy, interval: timedelta) -> Service:
    """Make the service that purges each `interval`, whatever else goes on.

    A pass repeats while whole batches come back, so that a backlog of finished rows cannot grow
    past it. Between two it waits for as long as the last one took, so that the traffic gets at
    least half of the database. Several instances may do this at once; the store keeps them apart.
    """

    def purge(stop: threading.Event) -> None:
        batch = PURGE_BATCH
        while True:
            began = time.monotonic()
            gone = store.purge(policy, batch)
            took = time.monotonic() - began
            if gone < batch or stop.wait(took):
                return
            batch = min(max(int(batch * _BRIEF / max(took, 1e-6)), _LEAST), PURGE_BATCH)

    def body(stop: threading.Event) -> None:
        # Spread out: instances that start together do not purge together.
        pause = interval.total_seconds() * random.random()
        while not stop.wait(pause):
            pause = interval.total_seconds() * random.uniform(0.8, 1.2)
            try:
                purge(stop)
            except QueueClosedError:
                return
            except Exception as error:  # a store is foreign code; the next pass runs
                service.error = f"purge: {error}"
                _logger.warning("the janitor's pass failed: %s", error, exc_info=is_bug(error))
            else:
                service.succeeded()

    service = Service("queue-janitor", body)
    return service


def listener(store: WakeSource, wake: Callable[[str], None]) -> Service:
    """Make the service that wakes subscriptions when other processes publish."""

    def body(stop: threading.Event) -> None:
        try:
            store.listen(heard, stop)
        except (UnsupportedError, QueueClosedError) as error:
            _logger.info("polling for messages of other processes, not listening: %s", error)
            stop.wait()

    def heard(topic: str) -> None:
        service.succeeded()
        wake(topic)

    service = Service("queue-listener", body, pause=1.0, longest_pause=30.0)
    return service
