"""Whoever lost a claim changes nothing with it.

Two groups receive the same messages and go through the same story; in one of them the loser comes
back and acts on its old claim. Whatever anybody can see of the two groups afterwards is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from queue_lib.stores.base import Claimed, DetailedStats
from queue_lib.testing.conformance.case import (
    OPERATIONS,
    TICK,
    TOPIC,
    StoreCase,
    every_test_requires,
)

__all__ = ["FencingConformance"]

TWINS = ("touched", "untouched")

Trace = list[object]


def expiry(_: StoreCase, claim: Claimed) -> None:
    """Nothing to do: the test lets the lease run out."""


def release(case: StoreCase, claim: Claimed) -> None:
    """Give it back."""
    case.store.release([claim])


def retry(case: StoreCase, claim: Claimed) -> None:
    """Fail, due again at once."""
    case.retry(claim, last_error="first")


def backoff(case: StoreCase, claim: Claimed) -> None:
    """Fail, due again much later."""
    case.retry(claim, backoff=50, last_error="first")


def ack(case: StoreCase, claim: Claimed) -> None:
    """Complete it."""
    case.ack(claim)


def kill(case: StoreCase, claim: Claimed) -> None:
    """Dead-letter it."""
    case.kill(claim)


LOSSES = [
    *(pytest.param(lose, True, id=f"{lose.__name__}, claimed again") for lose in (
        expiry, release, retry)),
    *(pytest.param(lose, False, id=lose.__name__) for lose in (
        release, retry, backoff, ack, kill)),
    pytest.param(ack, True, id="ack, next claimed"),
    pytest.param(kill, True, id="kill, next claimed"),
]  # fmt: skip


@every_test_requires("clock")
class FencingConformance(StoreCase):
    """Stale claims."""

    @pytest.mark.parametrize("operation", OPERATIONS)
    @pytest.mark.parametrize(("lose", "reclaim"), LOSSES)
    def test_a_stale_claim_changes_nothing(
        self, lose: Callable[[StoreCase, Claimed], None], reclaim: bool, operation: str
    ) -> None:
        for group in TWINS:
            self.register(group)
        self.publish("head", "next", key="k")
        self.publish("other")
        stale = {group: self.claim(1, group=group, lease=10)[0] for group in TWINS}
        self.pass_time(11)
        for group in TWINS:
            lose(self, stale[group])
            if reclaim:
                self.claim(group=group, lease=30)

        answer = self.do(operation, stale["touched"])

        assert not answer
        touched, untouched = self._observe()
        assert touched == untouched

    @pytest.mark.parametrize("operation", OPERATIONS)
    def test_a_claim_on_what_was_purged_changes_nothing(self, operation: str) -> None:
        for group in TWINS:
            self.register(group)
        self.publish("head", "next", key="k")
        stale = {group: self.claim(1, group=group)[0] for group in TWINS}
        for claim in stale.values():
            self.kill(claim)
        self.pass_time(100)
        assert self.purge(dead=50, acked=50) == 3  # two deliveries and their message
        assert not self.do(operation, stale["touched"])
        touched, untouched = self._observe()
        assert touched == untouched

    def _observe(self) -> tuple[Trace, Trace]:
        """Record all that can be seen of the two groups now and later; uses them up."""
        traces: dict[str, Trace] = {group: [] for group in TWINS}
        moments = [
            timedelta(0),
            timedelta(seconds=30),  # the very end of the fresh leases
            TICK,  # they are over
            timedelta(seconds=30),  # backoffs are over
            timedelta(days=1),
        ]
        for moment in moments:
            self.pass_time(moment)
            for group, trace in traces.items():
                trace.append(self.stats(group))
                if isinstance(self.store, DetailedStats):
                    trace.append(self.store.group_stats(TOPIC, group))
                claims = self.claim(group=group, lease=30)
                trace += [(c.message, c.attempt, c.last_error) for c in claims]
        for group, trace in traces.items():
            trace += [self.drain(group), self.stats(group)]
        return traces["touched"], traces["untouched"]
