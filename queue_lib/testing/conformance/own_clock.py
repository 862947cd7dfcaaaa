"""A store as it runs in production, on its own clock: a few tests that really wait, briefly.

Everything else about time is tested on an injected clock; this shows that the store's own one is
wired up the same way. The clocks of the store and of this process must agree to some milliseconds.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from queue_lib.stores.base import ClaimBatch, Claimed
from queue_lib.testing.clock import ManualClock
from queue_lib.testing.conformance.case import DEADLINE, StoreCase

__all__ = ["OwnClockConformance"]

MOMENT = timedelta(milliseconds=250)

COARSENESS = timedelta(milliseconds=2)
"""Clocks of stores may count whole milliseconds."""


class OwnClockConformance(StoreCase):
    """Time as the store tells it. `make_store` must not pass on the clock that it is given."""

    @pytest.fixture(name="clock")
    def given_clock(self) -> ManualClock:
        """Stand still at the real time: what `due_in` counts from."""
        return ManualClock(datetime.now(UTC))

    def claim_in_time(self) -> Claimed:
        """Claim again and again until there is something."""
        deadline = time.monotonic() + DEADLINE
        while not (claims := self.claim()):
            assert time.monotonic() < deadline, "nothing ever became due"
            time.sleep(0.005)
        (claim,) = claims
        return claim

    def test_a_lease_runs_out_by_itself_and_not_early(self) -> None:
        self.register()
        self.publish("a")
        began = time.monotonic()
        first = self.claim_one(lease=MOMENT)
        second = self.claim_in_time()
        assert time.monotonic() - began >= (MOMENT - COARSENESS).total_seconds()
        assert (second.attempt, second.message) == (2, first.message)
        assert self.store.ack([first]) == []
        self.ack(second)

    def test_an_extended_lease_does_not_run_out(self) -> None:
        self.register()
        self.publish("a")
        claim = self.claim_one(lease=MOMENT)
        while not self.extend(claim, lease=3600):  # this machine may have stalled that long
            claim = self.claim_in_time()
        threading.Event().wait(MOMENT.total_seconds() * 1.2)
        assert self.claim() == []
        self.ack(claim)

    def test_a_retry_comes_when_its_delay_is_over_and_not_early(self) -> None:
        self.register()
        self.publish("a")
        began = time.monotonic()
        self.retry(self.claim_one(), backoff=MOMENT.total_seconds())
        assert self.claim_in_time().attempt == 2
        assert time.monotonic() - began >= (MOMENT - COARSENESS).total_seconds()

    def test_a_scheduled_message_comes_when_it_is_due_and_not_early(self) -> None:
        self.register()
        message = self.message("a", due_in=MOMENT)
        self.store.append([message])
        assert self.claim_in_time().attempt == 1
        assert message.deliver_at is not None
        assert datetime.now(UTC) >= message.deliver_at - COARSENESS

    def test_next_due_counts_from_now(self) -> None:
        self.register()
        self.publish("a")
        self.publish("b", due_in=600)
        self.retry(self.claim_one(), backoff=60)
        batch = self.claim()
        if not isinstance(batch, ClaimBatch):
            pytest.skip("this store's claims do not say when to look again")
        assert batch.next_due is not None
        assert timedelta(seconds=30) < batch.next_due <= timedelta(seconds=60)

    def test_ages_count_from_now(self) -> None:
        self.register()
        self.publish("a", "b")
        a, b = self.claim()
        self.ack(a)
        self.kill(b)
        assert self.purge(dead=60, acked=60) == 0
        deadline = time.monotonic() + DEADLINE
        gone = 0
        while gone < 3 and time.monotonic() < deadline:
            gone += self.purge(dead=0, acked=0)
        assert gone == 3  # the dead delivery, and both messages
