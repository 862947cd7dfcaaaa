"""Lanes: deliveries of one key are handed out one by one, in publish order, come what may."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable

import pytest

from queue_lib.stores.base import Stats
from queue_lib.testing.conformance.case import StoreCase, ids, together

__all__ = ["OrderConformance"]


class OrderConformance(StoreCase):
    """The order of a key."""

    def test_one_claim_takes_only_the_head_of_each_lane(self) -> None:
        self.register()
        self.publish("k1", "k2", "k3", key="k")
        self.publish("j1", "j2", key="j")
        self.publish("x", "y")
        assert ids(self.claim(100)) == ["k1", "j1", "x", "y"]
        assert self.claim(100) == []
        assert self.stats() == Stats(pending=3, leased=4)

    def test_an_ack_brings_the_next_one_forward(self) -> None:
        self.register()
        self.publish("k1", "k2", "k3", key="k")
        for name in ("k1", "k2", "k3"):
            claim = self.claim_one()
            assert claim.message.id == name
            assert self.claim() == []
            self.ack(claim)
        assert self.stats() == Stats()

    def test_one_ack_of_many_lanes_brings_each_forward(self) -> None:
        self.register()
        for round_ in range(3):
            for lane in "abcdefg":
                self.publish(f"{lane}{round_}", key=lane)
        for round_ in range(3):
            claims = self.claim(100)
            assert ids(claims) == [f"{lane}{round_}" for lane in "abcdefg"]
            self.ack(*claims)

    def test_order_holds_through_a_backoff(self) -> None:
        self.register()
        self.publish("k1", "k2", key="k")
        self.retry(self.claim_one(), backoff=0)
        again = self.claim_one()
        assert (again.message.id, again.attempt) == ("k1", 2)
        self.ack(again)
        assert self.drain() == ["k2"]

    def test_order_holds_through_a_death(self) -> None:
        self.register()
        self.publish("k1", "k2", "k3", key="k")
        self.kill(self.claim_one())
        second = self.claim_one()
        assert second.message.id == "k2"
        self.kill(second)
        assert self.drain() == ["k3"]

    def test_order_holds_through_a_release(self) -> None:
        self.register()
        self.publish("k1", "k2", key="k")
        self.store.release([self.claim_one()])
        claim = self.claim_one()
        assert claim.message.id == "k1"
        self.ack(claim)
        assert self.drain() == ["k2"]

    @pytest.mark.requires("clock")
    def test_order_holds_through_a_lost_lease(self) -> None:
        self.register()
        self.publish("k1", "k2", key="k")
        self.claim_one(lease=5)
        self.pass_time(6)
        again = self.claim_one()
        assert (again.message.id, again.attempt) == ("k1", 2)
        self.ack(again)
        assert self.drain() == ["k2"]

    # -- who waits stays behind, in whatever state its head is -----------------------------

    def _pending(self) -> None:
        pass

    def _leased(self) -> None:
        self.claim_one(lease=30)

    def _extended(self) -> None:
        assert self.extend(self.claim_one(lease=30), lease=300) == {"head"}

    def _expired(self) -> None:
        self.claim_one(lease=5)
        self.pass_time(6)

    def _released(self) -> None:
        self.store.release([self.claim_one()])

    def _backing_off(self) -> None:
        self.retry(self.claim_one(), backoff=30)

    def _due_again(self) -> None:
        self.retry(self.claim_one(), backoff=5)
        self.pass_time(6)

    @pytest.mark.requires("clock")
    @pytest.mark.parametrize("end", ["ack", "kill"])
    @pytest.mark.parametrize(
        "state",
        [_pending, _leased, _extended, _expired, _released, _backing_off, _due_again],
        ids=lambda state: state.__name__.strip("_"),
    )
    def test_who_waits_stays_behind_a_head_that_is(
        self, state: Callable[[OrderConformance], None], end: str
    ) -> None:
        self.register()
        self.publish("head", "next", "last", key="k")
        state(self)
        self.publish("newest", key="k")
        assert set(ids(self.claim(lease=10))) <= {"head"}
        assert self.stats().pending >= 3
        self.pass_time(400)
        assert self.claim_one(lease=10).message.id == "head"
        self.pass_time(11)
        head = self.claim_one()
        assert head.message.id == "head"
        self.do(end, head)
        assert self.drain() == ["next", "last", "newest"]

    # -- lanes are independent -------------------------------------------------------------

    def test_a_blocked_lane_holds_up_nobody_else(self) -> None:
        self.register()
        self.publish(*(f"k{number:03}" for number in range(300)), key="blocked")
        self.retry(self.claim_one(), backoff=3600)
        self.publish("j", key="j")
        self.publish("x")
        assert ids(self.claim(10)) == ["j", "x"]

    def test_a_key_on_another_topic_is_another_lane(self) -> None:
        self.register(topic="orders")
        self.register(topic="refunds")
        self.publish("o", topic="orders", key="k")
        self.publish("r", topic="refunds", key="k")
        assert ids(self.claim(topic="orders")) == ["o"]
        assert ids(self.claim(topic="refunds")) == ["r"]

    def test_a_lane_that_was_drained_is_as_good_as_new(self) -> None:
        self.register()
        for round_ in range(3):
            self.publish(f"{round_}a", f"{round_}b", key="k")
            assert self.drain() == [f"{round_}a", f"{round_}b"]

    def test_a_dead_delivery_does_not_block_its_lane(self) -> None:
        self.register()
        self.publish("k1", key="k")
        self.kill(self.claim_one())
        self.publish("k2", key="k")
        assert self.drain() == ["k2"]

    def test_lanes_hold_under_concurrent_consumers(self) -> None:
        self.register()
        per_key = 12
        for number in range(per_key):
            for key in ("a", "b", "c"):
                self.publish(f"{key}{number:02}", key=key)
        done: dict[str, list[str]] = defaultdict(list)
        running: set[str] = set()
        turns = itertools.count(1)
        guard = threading.Lock()  # guards all three

        def consume(_: int) -> None:
            claims = self.claim(2)
            with guard:
                for claim in claims:
                    assert claim.message.key not in running, "two of one lane at once"
                    running.add(claim.message.key)
            for claim in claims:
                # The books are closed first: the settled lane may be claimed by another at once.
                with guard:
                    turn = next(turns)
                    running.discard(claim.message.key)
                    if turn % 3:
                        done[claim.message.key].append(claim.message.id)
                if turn % 3 == 0:
                    self.retry(claim)
                else:
                    self.do("kill" if turn % 5 == 0 else "ack", claim)

        while self.stats().pending:
            together(4, consume)
        assert done == {
            key: [f"{key}{number:02}" for number in range(per_key)] for key in ("a", "b", "c")
        }
