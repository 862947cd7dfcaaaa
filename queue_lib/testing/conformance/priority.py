"""Priorities: lower first among what is due, and never against the order of a lane."""

from __future__ import annotations

import pytest

from queue_lib.testing.conformance.case import StoreCase, ids

__all__ = ["PriorityConformance"]


class PriorityConformance(StoreCase):
    """Which due delivery comes first."""

    def test_the_lowest_comes_first_and_age_decides_among_equals(self) -> None:
        self.register()
        for name, priority in [("a", 5), ("b", 0), ("c", -3), ("d", 0), ("e", 5), ("f", -3)]:
            self.publish(name, priority=priority)
        assert ids(self.claim(4)) == ["c", "f", "b", "d"]
        assert ids(self.claim(4)) == ["a", "e"]

    def test_a_newcomer_overtakes(self) -> None:
        self.register()
        self.publish("a", "b", priority=1)
        self.claim(1)
        self.publish("urgent", priority=0)
        assert ids(self.claim()) == ["urgent", "b"]

    def test_the_priority_comes_back(self) -> None:
        self.register()
        for name, priority in (("a", -1_000_000), ("b", 0), ("c", 1_000_000)):
            self.publish(name, priority=priority)
        assert [claim.message.priority for claim in self.claim()] == [-1_000_000, 0, 1_000_000]

    def test_it_never_breaks_a_lane(self) -> None:
        self.register()
        self.publish("k1", key="k", priority=9)
        self.publish("k2", key="k", priority=-9)
        self.publish("x", priority=0)
        claims = self.claim()
        assert ids(claims) == ["x", "k1"]
        self.ack(claims[1])
        assert ids(self.claim()) == ["k2"]

    def test_it_counts_once_a_delivery_is_its_lanes_head(self) -> None:
        self.register()
        self.publish("k1", key="k")
        self.publish("k2", key="k", priority=-9)
        self.publish("x", "y")
        self.ack(self.claim(1)[0])
        assert ids(self.claim()) == ["k2", "x", "y"]

    def test_a_retry_and_a_release_keep_it(self) -> None:
        self.register()
        self.publish("low", priority=7)
        self.publish("high", priority=-7)
        self.publish("mid")
        high, mid, _ = self.claim()
        self.retry(high)
        self.store.release([mid])
        self.publish("new")
        assert ids(self.claim()) == ["high", "mid", "new"]

    @pytest.mark.requires("clock")
    def test_all_that_is_due_is_ranked_together(self) -> None:
        self.register()
        self.publish("scheduled", priority=-2, due_in=10)
        self.publish("retried", priority=-4)
        self.retry(self.claim_one(), backoff=10)
        self.publish("lost", priority=-3)
        self.claim_one(lease=5)
        self.publish("plain", priority=-1)
        self.publish("last", priority=0, due_in=5)
        self.pass_time(10)
        assert ids(self.claim(2)) == ["retried", "lost"]
        assert ids(self.claim()) == ["scheduled", "plain", "last"]
