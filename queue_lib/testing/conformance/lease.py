"""Leases: how long they last, who gets the delivery afterwards, and how they are renewed."""

from __future__ import annotations

from datetime import timedelta

from queue_lib.stores.base import Stats
from queue_lib.testing.conformance.case import TICK, StoreCase, every_test_requires, ids

__all__ = ["LeaseConformance"]


@every_test_requires("clock")
class LeaseConformance(StoreCase):
    """Leases that run out, and leases that are extended."""

    def test_a_lease_lasts_until_its_end(self) -> None:
        self.register()
        self.publish("a")
        first = self.claim_one(lease=30)
        self.pass_time(30)
        assert self.claim() == []
        self.pass_time(TICK)
        second = self.claim_one(lease=30)
        assert (second.message, second.attempt) == (first.message, 2)
        assert second.delivery_id == first.delivery_id
        assert second.claim_token != first.claim_token

    def test_each_lost_lease_counts_one_attempt(self) -> None:
        self.register()
        self.publish("a")
        for attempt in range(1, 6):
            assert self.claim_one(lease=1).attempt == attempt
            self.pass_time(10)  # many times the lease, still one expiry

    def test_leases_of_one_group_end_each_in_its_own_time(self) -> None:
        self.register()
        self.publish("long", "short")
        self.claim(1, lease=60)
        self.claim(1, lease=5)
        self.pass_time(6)
        assert ids(self.claim(lease=100)) == ["short"]
        self.pass_time(55)
        assert ids(self.claim()) == ["long"]

    def test_a_lost_delivery_keeps_its_place(self) -> None:
        self.register()
        self.publish("a", "b", "c")
        assert ids(self.claim(1, lease=5)) == ["a"]
        self.pass_time(6)
        assert [(claim.message.id, claim.attempt) for claim in self.claim()] == [
            ("a", 2),
            ("b", 1),
            ("c", 1),
        ]

    def test_an_extension_counts_from_now(self) -> None:
        self.register()
        self.publish("a")
        claim = self.claim_one(lease=30)
        self.pass_time(20)
        assert self.extend(claim, lease=30) == {"a"}
        self.pass_time(30)
        assert self.claim() == []
        self.pass_time(TICK)
        assert self.claim_one().attempt == 2

    def test_an_extension_may_shorten(self) -> None:
        self.register()
        self.publish("a")
        claim = self.claim_one(lease=300)
        assert self.extend(claim, lease=5) == {"a"}
        self.pass_time(6)
        assert self.claim_one().attempt == 2

    def test_a_lease_can_be_extended_up_to_its_very_end(self) -> None:
        self.register()
        self.publish("a")
        claim = self.claim_one(lease=30)
        for _ in range(5):
            self.pass_time(30)
            assert self.extend(claim, lease=30) == {"a"}
        self.pass_time(30)
        assert self.claim() == []
        self.ack(claim)

    def test_an_extension_says_which_are_still_held(self) -> None:
        self.register()
        self.publish("acked", "killed", "retried", "released", "lost", "held")
        short = self.claim(5, lease=5)
        acked, killed, retried, released, lost = short
        held = self.claim_one(lease=60)
        self.ack(acked)
        self.kill(killed)
        self.retry(retried, backoff=60)
        self.store.release([released])
        self.pass_time(6)
        assert self.extend(*short, held, lease=60) == {"held"}
        assert self.stats() == Stats(pending=2, leased=2, dead=1)
        assert lost.delivery_id in {claim.delivery_id for claim in self.claim()}

    def test_the_rest_can_be_extended_after_one_of_the_batch_was_acked(self) -> None:
        self.register()
        self.publish("a", "b", "c")
        batch = self.claim(lease=30)
        self.ack(batch[1])
        self.pass_time(20)
        assert self.extend(*batch, lease=30) == {"a", "c"}
        self.pass_time(20)
        assert self.claim() == []
        self.ack(batch[0], batch[2])

    def test_an_expired_lease_is_not_revived(self) -> None:
        self.register()
        self.publish("a")
        claim = self.claim_one(lease=30)
        self.pass_time(timedelta(seconds=30) + TICK)
        assert self.extend(claim, lease=3600) == set()
        assert self.extend(claim, lease=3600) == set()
        assert self.claim_one().attempt == 2

    def test_an_expired_lease_counts_as_leased_until_it_is_claimed_again(self) -> None:
        self.register()
        self.publish("a")
        self.claim_one(lease=30)
        self.pass_time(3600)
        assert self.stats() == Stats(leased=1)

    def test_an_expired_claim_that_nobody_took_can_still_be_acked(self) -> None:
        self.register()
        self.publish("a", "b", key="k")
        claim = self.claim_one(lease=30)
        self.pass_time(31)
        self.ack(claim)
        assert self.drain() == ["b"]
        assert self.stats() == Stats()

    def test_an_expired_claim_that_nobody_took_can_still_be_retried(self) -> None:
        self.register()
        self.publish("a")
        claim = self.claim_one(lease=30)
        self.pass_time(31)
        self.retry(claim, backoff=10, last_error="late")
        assert self.claim() == []
        self.pass_time(10)
        again = self.claim_one()
        assert (again.attempt, again.last_error) == (2, "late")  # one attempt, not two

    def test_an_expired_claim_that_nobody_took_can_still_be_killed(self) -> None:
        self.register()
        self.publish("a", "b", key="k")
        claim = self.claim_one(lease=30)
        self.pass_time(31)
        self.kill(claim)
        assert self.stats() == Stats(pending=1, dead=1)
        assert self.drain() == ["b"]

    def test_an_expired_claim_that_nobody_took_can_still_be_released(self) -> None:
        self.register()
        self.publish("a")
        claim = self.claim_one(lease=30)
        self.pass_time(31)
        self.store.release([claim])
        assert self.stats() == Stats(pending=1)
        assert self.claim_one().attempt == 1  # given back, not lost
