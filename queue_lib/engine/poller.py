"""One look for all idle subscriptions of a queue, instead of a poll of each.

A subscription that found nothing leaves word when it wants to be looked after again. The poller
asks the store for all of them in one statement, and wakes those that have something to do: an idle
queue costs the database and this process one statement in each poll interval, however many
subscriptions it has, and their threads sleep on.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable

from queue_lib.engine.lifecycle import Service, is_bug
from queue_lib.engine.plan import Plan
from queue_lib.engine.pump import Pump
from queue_lib.errors import QueueClosedError
from queue_lib.logs import get_logger
from queue_lib.stores.base import Peeker

__all__ = ["Poller"]

_logger = get_logger("queue_lib.engine")

# Of its interval: by so much a poll may come early, to come along with others. With a half, any two
# that are not together yet will be: one of them is less than that behind the other.
_EARLY = 0.5
_SPREAD = 0.2  # of the interval: processes that started together do not poll together


class Poller(Service):
    """Looks for those pumps whose polls are due."""

    def __init__(self, store: Peeker, pumps: Callable[[], Iterable[Pump]]) -> None:
        super().__init__("queue-poller", self._loop)
        self._store = store
        self._pumps = pumps  # those of the subscriptions that there are now
        self._changed = threading.Event()

    def joined(self) -> None:
        """There is one more subscription."""
        self._changed.set()

    def stop(self) -> None:
        """Ask the thread to end. Does not wait."""
        super().stop()
        self._changed.set()

    def _loop(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._changed.clear()  # before looking who is there
            pumps = list(self._pumps())
            now = time.monotonic()
            plans = [pump.plan for pump in pumps]
            if any(plan.poll_at <= now for plan in plans):
                if not self._look([pump for pump in pumps if _comes_along(pump.plan, now)]):
                    return
                continue
            # A pump that falls idle meanwhile asks for no earlier look than its interval from then,
            # less the spread: nobody has to wake this thread for it.
            waits = [min(plan.poll_at - now, (1 - _SPREAD) * plan.poll_interval) for plan in plans]
            self._changed.wait(min(waits, default=threading.TIMEOUT_MAX))

    def _look(self, pumps: list[Pump]) -> bool:
        """Look for these; say whether there is still a store."""
        factor = random.uniform(1 - _SPREAD, 1 + _SPREAD)  # one for all: they stay together
        now = time.monotonic()
        try:
            peeks = self._store.peek([pump.name for pump in pumps])
        except QueueClosedError:
            return False
        except Exception as error:  # a store is foreign code
            self.error = f"poll: {error}"
            _logger.warning("looking for work failed: %s", error, exc_info=is_bug(error))
            # Each polls by itself, and so finds out, tells, and tries again in its own time.
            for pump in pumps:
                pump.plan.poll_at = now + factor * pump.plan.poll_interval
                pump.wake()
        else:
            self.succeeded()
            for pump, peek in zip(pumps, peeks, strict=True):
                pump.plan.poll_at = now + factor * pump.plan.poll_interval
                pump.looked_after(peek)
        return True


def _comes_along(plan: Plan, now: float) -> bool:
    return plan.poll_at <= now + _EARLY * plan.poll_interval
