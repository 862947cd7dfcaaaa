"""`Store.append`: fan-out, idempotence, and what a caller may do with its objects afterwards."""

from __future__ import annotations

import pytest

from queue_lib.options import StartFrom
from queue_lib.stores.base import Stats
from queue_lib.testing.conformance.case import GROUP, TOPIC, StoreCase, ids, together

__all__ = ["AppendConformance"]


class AppendConformance(StoreCase):
    """Publishing into a store."""

    def test_a_message_reaches_every_group_of_its_topic(self) -> None:
        for group in ("billing", "shipping", "audit"):
            self.register(group)
        self.publish("a", "b")
        for group in ("billing", "shipping", "audit"):
            assert self.drain(group) == ["a", "b"]

    def test_a_message_reaches_no_group_of_another_topic(self) -> None:
        self.register(topic="orders")
        self.register(topic="refunds")
        self.publish("a", topic="orders")
        assert self.claim(topic="refunds") == []
        assert ids(self.claim(topic="orders")) == ["a"]

    def test_one_call_carries_several_topics(self) -> None:
        for topic in ("orders", "refunds", "visits"):
            self.register(topic=topic)
        self.store.append(
            [
                self.message("r1", topic="refunds"),
                self.message("o1", topic="orders", key="k"),
                self.message("nobody", topic="unheard"),
                self.message("r2", topic="refunds", key="k"),
                self.message("o2", topic="orders", key="k"),
                self.message("v1", topic="visits"),
            ]
        )
        assert self.drain(topic="orders") == ["o1", "o2"]
        assert self.drain(topic="refunds") == ["r1", "r2"]
        assert self.drain(topic="visits") == ["v1"]
        self.register(topic="unheard", start_from=StartFrom.EARLIEST)
        assert self.drain(topic="unheard") == ["nobody"]

    def test_appending_nothing_does_nothing(self) -> None:
        self.register()
        self.store.append([])
        assert self.stats() == Stats()

    def test_of_two_equal_ids_in_one_call_the_first_wins(self) -> None:
        self.register()
        self.store.append(
            [
                self.message("a", payload=b"first"),
                self.message("b"),
                self.message("a", payload=b"second"),
            ]
        )
        claims = self.claim()
        assert [(claim.message.id, claim.message.payload) for claim in claims] == [
            ("a", b"first"),
            ("b", b""),
        ]

    def test_a_stored_id_is_a_no_op_among_new_ones(self) -> None:
        self.register()
        self.publish("b", payload=b"first")
        self.publish("a", "b", "c", payload=b"second")
        payloads = {claim.message.id: claim.message.payload for claim in self.claim()}
        assert payloads == {"b": b"first", "a": b"second", "c": b"second"}

    def test_an_id_again_after_its_ack_stores_nothing(self) -> None:
        self.register()
        self.publish("a")
        self.ack(self.claim_one())
        self.publish("a")
        assert self.claim() == []
        assert self.stats() == Stats()

    def test_an_id_again_after_its_death_stores_nothing(self) -> None:
        self.register()
        self.publish("a")
        self.kill(self.claim_one())
        self.publish("a")
        assert self.claim() == []
        assert self.stats() == Stats(dead=1)

    @pytest.mark.requires("clock")
    def test_an_id_again_while_leased_leaves_the_lease_alone(self) -> None:
        self.register()
        self.publish("a", payload=b"first", key="k")
        claim = self.claim_one(lease=30)
        self.pass_time(20)
        self.publish("a", payload=b"second", key="other", priority=-5)
        assert self.stats() == Stats(leased=1)
        self.pass_time(10)
        assert self.extend(claim, lease=30) == {"a"}  # the lease ends now, not later, not earlier
        self.pass_time(31)
        again = self.claim_one()
        assert (again.attempt, again.message) == (2, claim.message)

    @pytest.mark.requires("clock")
    def test_an_id_again_while_backing_off_or_scheduled_reschedules_nothing(self) -> None:
        self.register()
        self.publish("a")
        self.publish("b", due_in=60)
        self.retry(self.claim_one(), backoff=60)
        self.publish("a")
        self.publish("b")
        assert self.claim() == []
        self.pass_time(60)
        assert ids(self.claim()) == ["a", "b"]

    def test_ids_are_global_across_topics(self) -> None:
        self.register(topic="orders")
        self.register(topic="refunds")
        self.publish("a", topic="orders")
        self.publish("a", "b", topic="refunds")
        assert self.drain(topic="orders") == ["a"]
        assert self.drain(topic="refunds") == ["b"]

    def test_ids_are_global_across_topics_inside_one_call(self) -> None:
        self.register(topic="orders")
        self.register(topic="refunds")
        self.store.append([self.message("a", topic="refunds"), self.message("a", topic="orders")])
        assert self.drain(topic="orders") == []
        assert self.drain(topic="refunds") == ["a"]

    def test_what_the_caller_changes_later_changes_nothing(self) -> None:
        self.register()
        headers = {"trace": "1"}
        message = self.message("a", payload=b"here", headers=headers)
        self.store.append([message])
        headers["trace"] = "2"
        message.payload, message.topic, message.key = b"gone", "elsewhere", "k"
        got = self.claim_one().message
        assert (got.payload, got.topic, got.key) == (b"here", TOPIC, "")
        assert got.headers == {"trace": "1"}

    def test_what_a_consumer_changes_changes_nothing(self) -> None:
        self.register()
        self.register("audit")
        self.publish("a", headers={"trace": "1"})
        claim = self.claim_one()
        assert claim.message.headers is not None
        claim.message.headers["trace"] = "2"
        claim.message.payload = b"other"
        self.store.release([claim])
        for group in (GROUP, "audit"):
            got = self.claim_one(group=group).message
            assert (got.headers, got.payload) == ({"trace": "1"}, b"")

    def test_publishers_of_equal_ids_at_one_moment_store_each_once(self) -> None:
        self.register()
        names = [f"m{number:02}" for number in range(40)]

        def publish(number: int) -> None:
            # Half of them the other way round: rows locked in call order would deadlock.
            self.publish(*(names if number % 2 else reversed(names)), key=f"k{number % 2}")

        together(6, publish)
        assert sorted(self.drain()) == names
