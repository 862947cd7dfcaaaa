"""`Store.claim`: what comes out, in which order, to whom, and when to look again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from queue_lib.names import delivery_id
from queue_lib.stores.base import ClaimBatch, Claimed, Stats
from queue_lib.testing.conformance.case import GROUP, StoreCase, ids, together

__all__ = ["ClaimConformance"]


class ClaimConformance(StoreCase):
    """Claiming deliveries."""

    def test_the_oldest_come_first(self) -> None:
        self.register()
        for name in ("c", "a", "d", "b"):
            self.publish(name)
        assert ids(self.claim(3)) == ["c", "a", "d"]
        assert ids(self.claim(3)) == ["b"]
        assert self.claim(3) == []

    def test_a_claim_says_what_it_stands_for(self) -> None:
        self.register()
        self.publish("a", payload=b"x")
        claim = self.claim_one()
        assert claim.delivery_id == delivery_id("a", GROUP)
        assert (claim.group, claim.attempt, claim.last_error) == (GROUP, 1, "")
        assert claim.message == self.message("a", payload=b"x")

    def test_every_claim_has_a_token_of_its_own(self) -> None:
        self.register()
        self.register("audit")
        self.publish("a", "b")
        first = self.claim() + self.claim(group="audit")
        self.store.release(first)
        tokens = [claim.claim_token for claim in first + self.claim() + self.claim(group="audit")]
        assert len(set(tokens)) == len(tokens) == 8
        assert all(tokens)

    def test_what_is_leased_is_not_handed_out(self) -> None:
        self.register()
        self.publish("a", "b", "c")
        assert ids(self.claim(2)) == ["a", "b"]
        assert ids(self.claim(2)) == ["c"]
        assert self.stats() == Stats(leased=3)

    def test_claiming_from_nothing(self) -> None:
        self.register()
        assert self.claim() == []

    def test_last_error_comes_back_on_the_next_claim(self) -> None:
        self.register()
        self.publish("a")
        self.retry(self.claim_one(), last_error="no route to host")
        second = self.claim_one()
        assert (second.attempt, second.last_error) == (2, "no route to host")
        self.store.release([second])
        assert self.claim_one().last_error == "no route to host"

    def test_the_newest_error_comes_back(self) -> None:
        self.register()
        self.publish("a")
        self.retry(self.claim_one(), last_error="first")
        self.retry(self.claim_one(), last_error="second")
        third = self.claim_one()
        assert (third.attempt, third.last_error) == (3, "second")

    @pytest.mark.requires("clock")
    def test_a_lost_lease_leaves_the_error_that_was_there(self) -> None:
        self.register()
        self.publish("a")
        self.retry(self.claim_one(), last_error="first")
        self.claim_one(lease=30)
        self.pass_time(31)
        third = self.claim_one()
        assert (third.attempt, third.last_error) == (3, "first")

    def test_claimers_at_one_moment_get_each_delivery_once(self) -> None:
        self.register()
        names = [f"m{number:03}" for number in range(120)]
        self.publish(*names)
        got = together(8, lambda _: self._claim_all())
        assert sorted(name for claims in got for name in ids(claims)) == names
        self.ack(*(claim for claims in got for claim in claims))
        assert self.stats() == Stats()

    @pytest.mark.requires("shared")
    def test_claimers_on_several_handles_get_each_delivery_once(self) -> None:
        self.register()
        names = [f"m{number:03}" for number in range(120)]
        self.publish(*names)
        handles = [self.store, self.second_handle(), self.second_handle()]

        def work(number: int) -> list[Claimed]:
            mine: list[Claimed] = []
            while claims := self.claim(7, store=handles[number % len(handles)]):
                mine += claims
            return mine

        got = [claim for claims in together(6, work) for claim in claims]
        assert sorted(ids(got)) == names
        self.ack(*got)  # through the first handle, whoever claimed

    def _claim_all(self) -> list[Claimed]:
        mine: list[Claimed] = []
        while claims := self.claim(7):
            mine += claims
        return mine

    # -- next_due: only where a store gives it ---------------------------------------------

    def _next_due(self, limit: int = 10) -> tuple[list[str], timedelta | None]:
        batch = self.claim(limit, lease=3600)
        if not isinstance(batch, ClaimBatch):
            pytest.skip("this store's claims do not say when to look again")
        return ids(batch), batch.next_due

    @pytest.mark.requires("clock")
    def test_next_due_is_the_next_scheduled_delivery(self) -> None:
        self.register()
        assert self._next_due() == ([], None)
        self.publish("now")
        assert self._next_due() == (["now"], None)
        self.publish("later", due_in=90)
        self.publish("sooner", due_in=timedelta(microseconds=40_000_001))
        assert self._next_due() == ([], timedelta(microseconds=40_000_001))
        self.pass_time(60)
        assert self._next_due() == (["sooner"], timedelta(seconds=30))

    @pytest.mark.requires("clock")
    def test_next_due_is_the_next_retry(self) -> None:
        self.register()
        self.publish("a", "b")
        a, b = self.claim()
        self.retry(a, backoff=9)
        self.retry(b, backoff=5)
        assert self._next_due() == ([], timedelta(seconds=5))
        self.pass_time(6)
        assert self._next_due() == (["b"], timedelta(seconds=3))

    @pytest.mark.requires("clock")
    def test_next_due_is_not_another_groups(self) -> None:
        self.register()
        self.publish("a", due_in=5)
        self.register("audit")
        self.publish("b", due_in=60)
        assert self._next_due() == ([], timedelta(seconds=5))
        assert self.claim(group="audit") == []
        self.pass_time(5)
        assert self._next_due() == (["a"], timedelta(seconds=55))

    @pytest.mark.requires("clock")
    def test_next_due_of_a_full_claim_is_right_or_not_given(self) -> None:
        self.register()
        self.publish("a", "b")
        self.publish("later", due_in=60)
        names, due = self._next_due(limit=1)
        assert names == ["a"]
        assert due in (None, timedelta(seconds=60))
