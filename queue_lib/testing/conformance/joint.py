"""Acknowledging and claiming in one step: the same as one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from queue_lib.stores.base import AckingClaimer, Claimed, ClaimRequest, Stats
from queue_lib.testing.conformance.case import (
    GROUP,
    TOPIC,
    StoreCase,
    every_test_requires,
    ids,
    together,
)

__all__ = ["JointConformance"]


@every_test_requires("ack_and_claim")
class JointConformance(StoreCase):
    """`AckingClaimer`."""

    def ack_and_claim(
        self, claims: Sequence[Claimed], limit: int = 10, *, group: str = GROUP, cap: int = 0
    ) -> tuple[list[str], list[Claimed]]:
        """Acknowledge claims, then claim."""
        assert isinstance(self.store, AckingClaimer)
        request = ClaimRequest(TOPIC, group, "runner", limit, timedelta(seconds=30), cap)
        return self.store.ack_and_claim(claims, request)

    def test_both_are_done(self) -> None:
        self.register()
        self.publish("a", "b", "c")
        a, b = self.claim(2)
        held, claims = self.ack_and_claim([a, b])
        assert sorted(held) == sorted([a.delivery_id, b.delivery_id])
        assert ids(claims) == ["c"]
        assert self.stats() == Stats(leased=1)
        assert self.ack_and_claim(claims) == ([claims[0].delivery_id], [])
        assert self.stats() == Stats()

    def test_nothing_to_acknowledge_is_a_claim(self) -> None:
        assert self.ack_and_claim([]) == ([], [])
        self.register()
        self.publish("a")
        held, claims = self.ack_and_claim([])
        assert (held, ids(claims)) == ([], ["a"])

    def test_the_next_of_a_key_is_found(self) -> None:
        self.register()
        self.publish("a", "b", "c", key="k")
        claims = self.claim()
        for expected in ("b", "c"):
            held, claims = self.ack_and_claim(claims)
            assert len(held) == 1
            assert ids(claims) == [expected]

    def test_the_slot_under_the_cap_is_found(self) -> None:
        self.register()
        self.publish("a", "b", "c")
        claims = self.claim(cap=2)
        assert ids(claims) == ["a", "b"]
        held, more = self.ack_and_claim(claims[:1], cap=2)
        assert (held, ids(more)) == ([claims[0].delivery_id], ["c"])

    def test_a_claim_that_does_not_hold_changes_nothing(self) -> None:
        self.register()
        self.publish("a", "b", key="k")
        claim = self.claim_one()
        forged = replace(claim, claim_token=str(UUID(int=0)))
        assert self.ack_and_claim([forged]) == ([], [])
        held, claims = self.ack_and_claim([forged, claim, claim])
        assert (set(held), ids(claims)) == ({claim.delivery_id}, ["b"])

    def test_claims_of_another_group_are_acknowledged_too(self) -> None:
        self.register()
        self.register("audit")
        self.publish("a", "b")
        theirs = self.claim(1, group="audit")
        held, claims = self.ack_and_claim(theirs, 1)
        assert (held, ids(claims)) == ([theirs[0].delivery_id], ["a"])
        assert self.stats("audit") == Stats(pending=1)

    @pytest.mark.requires("clock")
    def test_it_tells_when_the_next_timer_ends(self) -> None:
        self.register()
        self.publish("a")
        self.publish("later", due_in=5)
        _, claims = self.ack_and_claim(self.claim(1))
        assert getattr(claims, "next_due", None) == timedelta(seconds=5)

    def test_many_consumers_at_once_take_each_delivery_once(self) -> None:
        self.register()
        self.publish(*(f"m{number}" for number in range(400)))

        def consume(_: int) -> list[str]:
            seen: list[str] = []
            claims: list[Claimed] = []
            while True:
                held, more = self.ack_and_claim(claims, 7)
                assert len(held) == len(claims)
                if not more:
                    return seen
                seen += ids(more)
                claims = more

        seen = [name for names in together(6, consume) for name in names]
        assert sorted(seen) == sorted(f"m{number}" for number in range(400))
        assert self.stats() == Stats()
