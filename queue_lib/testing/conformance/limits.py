"""`ClaimRequest.max_in_flight`: a group's unexpired leases never exceed it, whoever claims."""

from __future__ import annotations

import pytest

from queue_lib.stores.base import Stats
from queue_lib.testing.conformance.case import OPERATIONS, StoreCase, ids, together

__all__ = ["LimitConformance"]


class LimitConformance(StoreCase):
    """The cap on deliveries in flight."""

    def test_a_claim_stops_at_the_cap(self) -> None:
        self.register()
        self.publish(*"abcdef")
        assert ids(self.claim(2, cap=3)) == ["a", "b"]
        assert ids(self.claim(2, cap=3)) == ["c"]
        assert self.claim(2, cap=3) == []
        assert self.stats() == Stats(pending=3, leased=3)

    def test_zero_means_no_cap(self) -> None:
        self.register()
        self.publish(*"abcdef")
        assert len(self.claim(6, cap=0)) == 6

    def test_claimers_at_one_moment_never_exceed_the_cap(self) -> None:
        self.register()
        self.publish(*(f"m{number:03}" for number in range(60)))
        for _ in range(4):
            got = together(6, lambda _: self.claim(3, cap=5))
            claims = [claim for batch in got for claim in batch]
            assert len(claims) == 5  # never above, and all of the room is used
            assert self.claim(cap=5) == []
            self.ack(*claims)

    @pytest.mark.requires("shared")
    def test_claimers_on_several_handles_never_exceed_the_cap(self) -> None:
        self.register()
        self.publish(*(f"m{number:03}" for number in range(30)))
        handles = [self.store, self.second_handle(), self.second_handle()]
        for _ in range(3):
            got = together(6, lambda n: self.claim(3, cap=4, store=handles[n % 3]))
            claims = [claim for batch in got for claim in batch]
            assert len(claims) == 4
            self.ack(*claims)

    @pytest.mark.parametrize("operation", [name for name in OPERATIONS if name != "extend"])
    def test_a_settled_claim_frees_its_place(self, operation: str) -> None:
        self.register()
        self.publish(*"abcd")
        first, second = self.claim(cap=2)
        assert self.claim(cap=2) == []
        self.do(operation, first)
        assert len(self.claim(cap=2)) == 1
        assert self.claim(cap=2) == []
        self.ack(second)
        assert len(self.claim(cap=2)) == 1

    @pytest.mark.requires("clock")
    def test_a_lost_lease_frees_its_place_and_takes_it_again(self) -> None:
        self.register()
        self.publish(*"abcd")
        self.claim(1, cap=2, lease=5)
        self.claim(1, cap=2, lease=60)
        assert self.claim(cap=2) == []
        self.pass_time(6)
        assert ids(self.claim(cap=2, lease=60)) == ["a"]
        assert self.claim(cap=2) == []
        assert self.stats() == Stats(pending=2, leased=2)

    @pytest.mark.requires("clock")
    def test_a_lost_lease_that_nobody_may_take_frees_its_place_for_another(self) -> None:
        self.register()
        self.publish("urgent", priority=-1)
        self.publish("a", "b")
        self.claim(1, cap=1, lease=60)  # urgent
        self.pass_time(61)
        self.publish("more urgent", priority=-2)
        assert ids(self.claim(cap=1, lease=60)) == ["more urgent"]
        assert self.claim(cap=1) == []

    @pytest.mark.requires("clock")
    def test_an_extended_lease_keeps_its_place(self) -> None:
        self.register()
        self.publish("a", "b")
        claim = self.claim(cap=1, lease=30)[0]
        for _ in range(3):
            self.pass_time(20)
            assert self.extend(claim, lease=30) == {"a"}
            assert self.claim(cap=1) == []

    def test_each_group_has_its_own_cap(self) -> None:
        self.register("billing")
        self.register("shipping")
        self.publish(*"abc")
        assert len(self.claim(group="billing", cap=2)) == 2
        assert len(self.claim(group="shipping", cap=1)) == 1
        assert self.claim(group="billing", cap=2) == []

    def test_a_lower_cap_than_what_is_in_flight_hands_out_nothing(self) -> None:
        self.register()
        self.publish(*"abcde")
        held = self.claim(4)
        assert self.claim(cap=2) == []
        self.ack(*held[:2])
        assert self.claim(cap=2) == []
        self.ack(held[2])
        assert ids(self.claim(cap=2)) == ["e"]

    def test_who_waits_behind_a_head_takes_no_place(self) -> None:
        self.register()
        self.publish("k1", "k2", "k3", key="k")
        self.publish("x", "y")
        assert ids(self.claim(cap=2)) == ["k1", "x"]
