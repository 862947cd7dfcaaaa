"""Renews the leases of everything a subscription holds, each third of a lease.

A thread of its own, so that neither handlers nor a slow claim keep it from its work. It says
when it could not run in time: a handler that keeps the interpreter's lock does that.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta

from queue_lib.engine.ledger import Ledger
from queue_lib.engine.lifecycle import Service, is_bug
from queue_lib.engine.run import Run
from queue_lib.errors import QueueClosedError
from queue_lib.logs import get_logger
from queue_lib.stores.base import Store

__all__ = ["Heartbeat"]

_logger = get_logger("queue_lib.engine")


class Heartbeat:
    """The heartbeat of one subscription."""

    def __init__(self, name: str, store: Store, ledger: Ledger, lease: timedelta) -> None:
        self.last_success: float | None = None  # monotonic; heartbeat thread writes
        self.service = Service(name, self._beat, longest_pause=lease.total_seconds() / 6)
        self._store = store
        self._ledger = ledger
        self._lease = lease
        self._seconds = lease.total_seconds()

    def _beat(self, stop: threading.Event) -> None:
        interval = self._seconds / 3
        pause = interval
        while True:
            planned = time.monotonic() + pause
            if stop.wait(pause):
                return
            late = time.monotonic() - planned
            if late > interval:
                _logger.warning(
                    "%s ran %.2f s late, of a lease of %.2f s", self.service.name, late,
                    self._seconds,
                )  # fmt: skip
            # After an error sooner again: two more tries fit into what is left of a lease.
            pause = interval if self._renew() else interval / 3

    def _renew(self) -> bool:
        runs = self._ledger.renewable()
        if not runs:
            self.service.succeeded()  # nothing that an earlier error could be about is left
            return True
        asked = time.monotonic()
        try:
            held = set(self._store.extend([run.claim for run in runs], self._lease))
        except QueueClosedError:
            return True
        except Exception as error:  # a store is foreign code
            # Nobody said that the leases are lost: they are ours until their confirmed end.
            self.service.error = f"heartbeat: {error}"
            _logger.warning("%s failed: %s", self.service.name, error, exc_info=is_bug(error))
            self._lose([run for run in runs if run.held_until <= time.monotonic()])
            return False
        self.service.succeeded()
        self.last_success = time.monotonic()
        for run in runs:
            if run.claim.delivery_id in held:
                run.held_until = asked + self._seconds
        self._lose([run for run in runs if run.claim.delivery_id not in held])
        return True

    def _lose(self, runs: list[Run]) -> None:
        for run in runs:
            if self._ledger.lose(run):
                run.report_lost()
