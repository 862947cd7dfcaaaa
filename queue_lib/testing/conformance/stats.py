"""`Store.stats`, and `DetailedStats.group_stats` where a store has it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from queue_lib.stores.base import DetailedStats, GroupStats, Stats
from queue_lib.testing.conformance.case import GROUP, TOPIC, StoreCase

__all__ = ["StatsConformance"]


class StatsConformance(StoreCase):
    """Counting deliveries."""

    def detailed(self, group: str = GROUP, *, topic: str = TOPIC) -> GroupStats:
        """Count closely, and check that both counts agree."""
        assert isinstance(self.store, DetailedStats)
        detailed = self.store.group_stats(topic, group)
        pending = detailed.ready + detailed.scheduled + detailed.retrying + detailed.behind_key
        plain = Stats(pending=pending, leased=detailed.leased, dead=detailed.dead)
        assert self.stats(group, topic=topic) == plain
        return detailed

    def test_an_unknown_group_has_no_deliveries(self) -> None:
        self.publish("a")
        assert self.stats() == Stats()
        assert self.stats(topic="nothing") == Stats()

    def test_a_new_group_has_no_deliveries(self) -> None:
        self.publish("a")
        self.register()
        assert self.stats() == Stats()

    def test_each_delivery_is_counted_once_in_each_of_its_states(self) -> None:
        self.register()
        self.publish("k1", "k2", key="k")
        assert self.stats() == Stats(pending=2)
        claim = self.claim_one()
        assert self.stats() == Stats(pending=1, leased=1)
        self.retry(claim)
        assert self.stats() == Stats(pending=2)
        self.kill(self.claim_one())
        assert self.stats() == Stats(pending=1, dead=1)
        claim = self.claim_one()
        self.store.release([claim])
        assert self.stats() == Stats(pending=1, dead=1)
        self.ack(self.claim_one())
        assert self.stats() == Stats(dead=1)

    def test_scheduled_and_backing_off_and_waiting_are_pending(self) -> None:
        self.register()
        self.publish("scheduled", due_in=3600)
        self.publish("k1", "k2", key="k")
        self.retry(self.claim_one(), backoff=3600)
        assert self.stats() == Stats(pending=3)

    def test_each_group_and_topic_counts_its_own(self) -> None:
        self.register("billing")
        self.register("shipping")
        self.register("billing", topic="refunds")
        self.publish("a", "b")
        self.publish("r", topic="refunds")
        self.drain("billing")
        assert self.stats("billing") == Stats()
        assert self.stats("shipping") == Stats(pending=2)
        assert self.stats("billing", topic="refunds") == Stats(pending=1)

    @pytest.mark.requires("detailed_stats")
    def test_an_unknown_group_has_no_deliveries_of_any_kind(self) -> None:
        assert self.detailed() == GroupStats()

    @pytest.mark.requires("detailed_stats", "clock")
    def test_what_deliveries_wait_for_is_told_apart(self) -> None:
        self.register()
        self.publish("scheduled", due_in=60)
        self.publish("retrying")
        self.retry(self.claim_one(), backoff=90)
        self.publish("dead")
        self.kill(self.claim_one())
        self.publish("leased")
        self.claim_one(lease=30)
        self.publish("k0", "k1", "k2", key="k")
        self.publish("ready")
        assert self.detailed() == GroupStats(
            ready=2,
            scheduled=1,
            retrying=1,
            behind_key=2,
            leased=1,
            dead=1,
            oldest_ready_age=timedelta(0),
        )
        self.pass_time(60)  # nobody claimed meanwhile
        assert self.detailed() == GroupStats(
            ready=3,
            retrying=1,
            behind_key=2,
            leased=1,
            dead=1,
            oldest_ready_age=timedelta(seconds=60),
        )
        self.pass_time(30)
        assert self.detailed().ready == 4
        assert self.detailed().retrying == 0

    @pytest.mark.requires("detailed_stats", "clock")
    def test_age_counts_from_when_a_delivery_became_due(self) -> None:
        self.register()
        self.publish("scheduled", due_in=60)
        assert self.detailed().oldest_ready_age is None
        self.pass_time(75)
        assert self.detailed().oldest_ready_age == timedelta(seconds=15)
        claim = self.claim_one()
        assert self.detailed().oldest_ready_age is None
        self.retry(claim, backoff=10)
        assert self.detailed().oldest_ready_age is None
        self.pass_time(17)
        assert self.detailed().oldest_ready_age == timedelta(seconds=7)

    @pytest.mark.requires("detailed_stats", "clock")
    def test_age_of_who_waited_counts_from_coming_forward(self) -> None:
        self.register()
        self.publish("k1", "k2", key="k")
        claim = self.claim_one(lease=3600)
        self.pass_time(100)
        assert self.detailed().oldest_ready_age is None
        self.ack(claim)
        self.pass_time(5)
        assert self.detailed().oldest_ready_age == timedelta(seconds=5)

    @pytest.mark.requires("detailed_stats", "clock")
    def test_age_is_that_of_the_oldest_whatever_its_priority(self) -> None:
        self.register()
        self.publish("patient", priority=9)
        self.pass_time(50)
        self.publish("urgent", priority=-9)
        assert self.detailed().oldest_ready_age == timedelta(seconds=50)
