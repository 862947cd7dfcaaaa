"""When one subscription claims next: the first of a wake, a time that is known, and a poll."""

from __future__ import annotations

import heapq
import math
import random
import threading
import time
from datetime import timedelta

from queue_lib.stores.base import Claimed, Peek

__all__ = ["Plan"]

_CLOSE = 0.005  # seconds by which a time that is known already may be later than one that is told


class Plan:
    """What a pump knows of the time to come.

    `wake`, `retry_due` and `looked_after` are called from any thread; the rest by whoever has the
    pump's turn. `poll_at` is written by both, and either of two times is as good as the other.
    """

    def __init__(self, poll_interval: float, *, is_looked_after: bool) -> None:
        self.poll_interval = poll_interval
        # Monotonic; when somebody is to look whether there is anything to claim. Where the store
        # lets the poller do that, it does; else it is a time to claim like any other.
        self.poll_at = math.inf
        self._is_looked_after = is_looked_after
        self._wanted = True  # a claim is worth while now; set by anybody, cleared by `begin`
        self._next_claim = 0.0
        self._spins = 0
        self._retry_lock = threading.Lock()
        self._retries: list[float] = []  # heap, when retries are due; guarded by _retry_lock

    # -- called from any thread --------------------------------------------------------------

    def wake(self) -> None:
        """Something may be due."""
        self._wanted = True

    def retry_due(self, delay: timedelta) -> None:
        """A delivery will be due again after `delay`."""
        with self._retry_lock:
            heapq.heappush(self._retries, time.monotonic() + delay.total_seconds())

    def looked_after(self, peek: Peek) -> bool:
        """The poller has looked; say whether that changes anything."""
        now = time.monotonic()
        if peek.may_claim:
            self.wake()
            return True
        if peek.next_due is not None:
            # Another process has scheduled something before anything that is known here.
            due = now + peek.next_due.total_seconds()
            if due < min(self._next_known() - _CLOSE, now + 2 * self.poll_interval):
                self.retry_due(peek.next_due)
                return True
        return False

    # -- in the pump's turn ------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Say whether to claim."""
        if self._first_retry(forget_until=now) <= now:
            self._wanted = True
        return self._wanted or now >= self._next_claim

    def begin(self) -> None:
        """Called before a claim: a wake during it asks for another one."""
        self._wanted = False

    def claimed(self, batch: list[Claimed], *, full: bool) -> None:
        """The store answered a claim; `full`: there was as much as was asked for."""
        now = time.monotonic()
        if full:
            self._next_claim = now  # there is more: again as soon as there is a slot
            self.poll_at = math.inf
            return
        delay = self.poll_interval * random.uniform(0.8, 1.2)
        self.poll_at = now + delay
        if self._is_looked_after:
            delay = math.inf
        next_due: timedelta | None = getattr(batch, "next_due", None)
        if next_due is None:
            self._spins = 0
        else:
            # Due by now and yet not claimed (the cap is reached, say): look less and less often.
            overdue = next_due <= timedelta(0)
            self._spins = self._spins + 1 if overdue and not batch else 0
            delay = min(delay, max(next_due.total_seconds(), 0.001 * 2 ** min(self._spins, 16)))
        self._next_claim = now + delay

    def failed(self, again_at: float) -> None:
        """The store did not answer: try again by itself, at that instant."""
        self._next_claim = again_at
        self.poll_at = math.inf

    def wait(self, now: float) -> float | None:
        """Return the seconds until the next claim; `None`: nothing is known but what wakes."""
        if self._wanted:
            return 0.0
        at = self._next_known()
        return None if at == math.inf else max(at - now, 0.0)

    def _next_known(self) -> float:
        return min(self._next_claim, self._first_retry())

    def _first_retry(self, forget_until: float = 0.0) -> float:
        """Return when the first retry is due; forget those that are due by `forget_until`."""
        with self._retry_lock:
            first = self._retries[0] if self._retries else math.inf
            while self._retries and self._retries[0] <= forget_until:
                heapq.heappop(self._retries)
            return first
