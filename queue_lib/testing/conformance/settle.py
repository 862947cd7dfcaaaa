"""The four ends of a claim: ack, retry, kill and release, by the one who holds it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from queue_lib.stores.base import Stats
from queue_lib.testing.conformance.case import OPERATIONS, TICK, StoreCase, ids

__all__ = ["SettleConformance"]


class SettleConformance(StoreCase):
    """Settling held claims."""

    def test_an_acked_delivery_never_comes_back(self) -> None:
        self.register()
        self.publish("a", "b")
        a, b = self.claim()
        assert self.store.ack([a]) == [a.delivery_id]
        assert self.stats() == Stats(leased=1)
        assert self.store.ack([b]) == [b.delivery_id]
        assert self.claim() == []
        assert self.stats() == Stats()

    def test_an_ack_says_which_were_held(self) -> None:
        self.register()
        self.publish("a", "b", "c")
        a, b, c = self.claim()
        self.store.release([b])
        assert set(self.store.ack([a, b, c])) == {a.delivery_id, c.delivery_id}
        assert self.store.ack([a, c]) == []
        assert ids(self.claim()) == ["b"]

    def test_one_call_settles_claims_of_several_topics_and_groups(self) -> None:
        self.register(topic="orders")
        self.register("audit", topic="orders")
        self.register(topic="refunds")
        self.publish("o", topic="orders")
        self.publish("r1", "r2", topic="refunds", key="k")
        claims = [
            *self.claim(topic="orders"),
            *self.claim(topic="refunds"),
            *self.claim(topic="orders", group="audit"),
        ]
        assert self.extend(*claims) == {"o", "r1"}
        self.ack(*claims)
        assert self.drain(topic="orders") == self.drain("audit", topic="orders") == []
        assert self.drain(topic="refunds") == ["r2"]

    def test_a_claim_listed_twice_is_settled_once(self) -> None:
        self.register()
        self.publish("a", "b", "c", key="k")
        first = self.claim_one()
        self.ack(first, first)
        second = self.claim_one()
        assert second.message.id == "b"
        self.store.release([second, second])
        assert self.stats() == Stats(pending=2)
        assert self.claim_one().attempt == 1

    def test_nothing_is_settled_by_an_empty_call(self) -> None:
        self.register()
        self.publish("a")
        self.claim_one()
        assert self.store.ack([]) == []
        assert self.store.extend([], timedelta(seconds=30)) == []
        self.store.release([])
        assert self.stats() == Stats(leased=1)

    @pytest.mark.requires("clock")
    def test_a_retry_honours_its_delay(self) -> None:
        self.register()
        self.publish("a")
        self.retry(self.claim_one(), backoff=20)
        assert self.stats() == Stats(pending=1)
        self.pass_time(timedelta(seconds=20) - TICK)
        assert self.claim() == []
        self.pass_time(TICK)
        assert self.claim_one().attempt == 2

    def test_a_retry_without_delay_is_due_at_once_and_keeps_its_place(self) -> None:
        self.register()
        self.publish("a", "b")
        self.retry(self.claim(1)[0])
        assert [(claim.message.id, claim.attempt) for claim in self.claim()] == [("a", 2), ("b", 1)]

    def test_each_retry_counts_one_attempt(self) -> None:
        self.register()
        self.publish("a")
        for attempt in range(1, 6):
            claim = self.claim_one()
            assert claim.attempt == attempt
            self.retry(claim)

    @pytest.mark.parametrize(
        "text",
        ["", "a\0b", "\ud800", "naïve “quotes” \N{COLLISION SYMBOL} 'x' \\", "long " * 10_000],
        ids=["empty", "NUL", "surrogate", "quotes", "long"],
    )
    def test_any_error_text_can_be_stored(self, text: str) -> None:
        self.register()
        self.publish("a", "b")
        a, b = self.claim()
        self.retry(a, last_error=text)
        self.kill(b, last_error=text)
        again = self.claim_one()
        assert again.attempt == 2
        if text.isprintable():
            assert again.last_error == text

    def test_a_killed_delivery_is_dead(self) -> None:
        self.register()
        self.publish("a")
        self.kill(self.claim_one())
        assert self.stats() == Stats(dead=1)
        assert self.claim() == []

    def test_a_release_is_due_at_once_and_counts_no_attempt(self) -> None:
        self.register()
        self.publish("a", "b")
        first = self.claim(1)[0]
        self.store.release([first])
        assert self.stats() == Stats(pending=2)
        assert [(claim.message.id, claim.attempt) for claim in self.claim()] == [("a", 1), ("b", 1)]

    def test_a_release_keeps_the_attempts_that_were_spent(self) -> None:
        self.register()
        self.publish("a")
        self.retry(self.claim_one(), last_error="first")
        for _ in range(3):
            claim = self.claim_one()
            assert (claim.attempt, claim.last_error) == (2, "first")
            self.store.release([claim])

    @pytest.mark.requires("clock")
    def test_a_release_keeps_the_attempts_that_expiries_spent(self) -> None:
        self.register()
        self.publish("a")
        self.claim_one(lease=30)
        self.pass_time(31)
        second = self.claim_one()
        assert second.attempt == 2
        self.store.release([second])
        assert self.claim_one().attempt == 2

    @pytest.mark.parametrize("operation", OPERATIONS)
    @pytest.mark.parametrize("forgery", ["random", "of another delivery", "not a token", "empty"])
    def test_a_forged_token_changes_nothing(self, operation: str, forgery: str) -> None:
        self.register()
        self.publish("a", "b")
        a, b = self.claim()
        token = {
            "random": str(uuid4()),
            "of another delivery": b.claim_token,
            "not a token": "' or 1=1 --",
            "empty": "",
        }[forgery]
        assert not self.do(operation, replace(a, claim_token=token))
        assert self.stats() == Stats(leased=2)
        assert self.extend(a, b) == {"a", "b"}
        self.retry(a)
        again = self.claim_one()
        assert (again.message.id, again.attempt, again.last_error) == ("a", 2, "failed")
        self.ack(again, b)
