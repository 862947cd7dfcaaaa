"""`Store.ensure_group`: who receives what was published before, and who never does."""

from __future__ import annotations

import pytest

from queue_lib.options import StartFrom
from queue_lib.stores.base import Stats
from queue_lib.testing.conformance.case import StoreCase, ids, together

__all__ = ["GroupConformance"]

EARLIEST, LATEST = StartFrom.EARLIEST, StartFrom.LATEST


class GroupConformance(StoreCase):
    """Registering consumer groups."""

    def test_latest_skips_what_was_there(self) -> None:
        self.publish("old")
        self.register(start_from=LATEST)
        self.publish("new")
        assert self.drain() == ["new"]

    def test_earliest_backfills_what_was_there_in_publish_order(self) -> None:
        names = [f"m{number}" for number in (3, 1, 2, 0)]
        for name in names:
            self.publish(name)
        self.register(start_from=EARLIEST)
        self.publish("new")
        assert self.drain() == [*names, "new"]

    def test_earliest_backfills_only_its_own_topic(self) -> None:
        self.publish("o", topic="orders")
        self.publish("r", topic="refunds")
        self.register(topic="orders", start_from=EARLIEST)
        assert self.drain(topic="orders") == ["o"]

    @pytest.mark.parametrize("first", [LATEST, EARLIEST])
    @pytest.mark.parametrize("second", [LATEST, EARLIEST])
    def test_a_second_registration_changes_nothing(
        self, first: StartFrom, second: StartFrom
    ) -> None:
        self.publish("a", "b", "c")
        self.register(start_from=first)
        held = self.claim(1)
        before = self.stats()
        self.register(start_from=second)
        assert self.stats() == before
        self.ack(*held)
        self.register(start_from=second)
        assert self.drain() == (["b", "c"] if first == EARLIEST else [])

    def test_a_backfill_keeps_the_order_of_a_lane(self) -> None:
        self.publish("k1", "k2", key="k")
        self.publish("x")
        self.publish("k3", key="k")
        self.register(start_from=EARLIEST)
        self.publish("k4", key="k")
        claims = self.claim()
        assert ids(claims) == ["k1", "x"]
        self.ack(*claims)
        assert self.drain() == ["k2", "k3", "k4"]

    def test_a_backfill_keeps_priorities(self) -> None:
        self.publish("late", priority=5)
        self.publish("soon", priority=-5)
        self.register(start_from=EARLIEST)
        assert self.drain() == ["soon", "late"]

    def test_groups_know_nothing_of_each_other(self) -> None:
        self.register("billing")
        self.register("shipping")
        self.publish("a", "b", key="k")
        self.kill(self.claim_one(group="billing"))
        assert self.stats("billing") == Stats(pending=1, dead=1)
        assert self.stats("shipping") == Stats(pending=2)
        first = self.claim_one(group="shipping")
        assert (first.message.id, first.attempt, first.last_error) == ("a", 1, "")

    def test_a_group_of_the_same_name_on_another_topic_is_another_group(self) -> None:
        self.publish("a", topic="orders")
        self.publish("b", topic="refunds")
        self.register(topic="orders", start_from=EARLIEST)
        self.register(topic="refunds", start_from=EARLIEST)
        assert self.drain(topic="orders") == ["a"]
        assert self.drain(topic="refunds") == ["b"]

    def test_an_unknown_group_has_nothing_to_claim(self) -> None:
        self.publish("a")
        assert self.claim(group="nobody") == []
        assert self.claim(topic="nothing") == []

    def test_a_late_group_starts_afresh_whatever_became_of_the_message_elsewhere(self) -> None:
        self.register("billing")
        self.publish("dead", "tried", "held")
        dead, tried, _held = self.claim(group="billing")
        self.kill(dead)
        self.retry(tried, backoff=60)
        self.register("late", start_from=EARLIEST)
        claims = self.claim(group="late")
        assert [(c.message.id, c.attempt, c.last_error) for c in claims] == [
            ("dead", 1, ""),
            ("tried", 1, ""),
            ("held", 1, ""),
        ]

    @pytest.mark.requires("clock")
    def test_acked_messages_replay_to_a_late_group_until_their_retention_ends(self) -> None:
        self.register()
        self.publish("a", "b")
        assert self.drain() == ["a", "b"]
        self.pass_time(59)
        assert self.purge(acked=60) == 0
        self.register("late", start_from=EARLIEST)
        assert self.drain("late") == ["a", "b"]
        self.pass_time(2)
        assert self.purge(acked=60) == 2
        self.register("too-late", start_from=EARLIEST)
        assert self.drain("too-late") == []

    def test_a_group_registered_while_publishing_misses_and_doubles_nothing(self) -> None:
        names = [f"m{number:02}" for number in range(30)]
        groups = [f"g{number}" for number in range(6)]

        def work(number: int) -> None:
            if number < 2:
                for name in names[number::2]:
                    self.publish(name, key="k" if number else "")
            else:
                for group in groups[number - 2 :: 2]:
                    self.register(group, start_from=EARLIEST)

        together(4, work)
        for group in groups:
            assert self.stats(group) == Stats(pending=len(names))
            seen = self.drain(group)
            assert sorted(seen) == names
            assert [name for name in seen if name in names[1::2]] == names[1::2]

    def test_registrations_at_one_moment_backfill_once(self) -> None:
        self.publish("a", "b")
        together(6, lambda _: self.register(start_from=EARLIEST))
        assert self.drain() == ["a", "b"]
