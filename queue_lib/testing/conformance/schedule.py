"""`Message.deliver_at`: never early, in every place that a scheduled delivery can be in."""

from __future__ import annotations

from datetime import timedelta, timezone

from queue_lib.options import StartFrom
from queue_lib.stores.base import Stats
from queue_lib.testing.conformance.case import TICK, StoreCase, every_test_requires, ids

__all__ = ["ScheduleConformance"]


@every_test_requires("clock")
class ScheduleConformance(StoreCase):
    """Scheduled deliveries."""

    def test_it_is_handed_out_at_its_instant_and_not_before(self) -> None:
        self.register()
        self.publish("a", due_in=60)
        assert self.stats() == Stats(pending=1)
        self.pass_time(timedelta(seconds=60) - TICK)
        assert self.claim() == []
        self.pass_time(TICK)
        claim = self.claim_one()
        assert (claim.message.id, claim.attempt) == ("a", 1)

    def test_the_schedule_comes_back(self) -> None:
        self.register()
        message = self.message("a")
        zone = timezone(timedelta(hours=-3, minutes=-30))
        message.deliver_at = self.clock.instant(timedelta(microseconds=60_000_001)).astimezone(zone)
        self.store.append([message])
        self.pass_time(61)
        got = self.claim_one().message.deliver_at
        assert got == message.deliver_at
        assert got is not None
        assert got.utcoffset() == timedelta(0)

    def test_the_past_is_due_at_once_and_overtakes_nobody(self) -> None:
        self.register()
        self.publish("a")
        self.publish("b", due_in=-3600)
        assert ids(self.claim()) == ["a", "b"]

    def test_it_holds_up_nobody_without_a_key(self) -> None:
        self.register()
        self.publish("later", due_in=60)
        self.publish("now")
        assert ids(self.claim()) == ["now"]

    def test_age_decides_among_those_that_are_due(self) -> None:
        self.register()
        self.publish("first", due_in=60)
        self.publish("second", due_in=30)
        self.publish("third")
        self.pass_time(60)
        assert ids(self.claim()) == ["first", "second", "third"]

    def test_as_a_lanes_head_it_keeps_its_place(self) -> None:
        self.register()
        self.publish("k1", key="k", due_in=60)
        self.publish("k2", key="k")
        assert self.claim() == []
        self.pass_time(60)
        assert self.drain() == ["k1", "k2"]

    def test_behind_a_head_its_schedule_still_counts(self) -> None:
        self.register()
        self.publish("k1", key="k")
        self.publish("k2", key="k", due_in=60)
        self.publish("k3", key="k")
        assert self.drain() == ["k1"]
        self.pass_time(59)
        assert self.claim() == []
        self.pass_time(1)
        assert self.drain() == ["k2", "k3"]

    def test_behind_a_head_it_may_come_due_and_then_comes_forward_at_once(self) -> None:
        self.register()
        self.publish("k1", key="k")
        self.publish("k2", key="k", due_in=20)
        head = self.claim_one(lease=60)
        self.pass_time(30)
        assert self.claim() == []
        self.ack(head)
        assert self.drain() == ["k2"]

    def test_a_death_brings_it_forward_too(self) -> None:
        self.register()
        self.publish("k1", key="k")
        self.publish("k2", key="k", due_in=60)
        self.kill(self.claim_one())
        assert self.claim() == []
        self.pass_time(60)
        assert self.drain() == ["k2"]

    def test_a_backfill_keeps_schedules(self) -> None:
        self.publish("past", due_in=5)
        self.publish("later", due_in=60)
        self.publish("k1", key="k", due_in=60)
        self.publish("k2", key="k")
        self.publish("j1", key="j")
        self.publish("j2", key="j", due_in=60)
        self.pass_time(10)
        self.register(start_from=StartFrom.EARLIEST)
        claims = self.claim()
        assert ids(claims) == ["past", "j1"]
        self.ack(*claims)
        assert self.claim() == []
        self.pass_time(50)
        assert self.drain() == ["later", "k1", "j2", "k2"]

    def test_a_retry_of_it_counts_from_the_failure(self) -> None:
        self.register()
        self.publish("a", due_in=60)
        self.pass_time(60)
        self.retry(self.claim_one(), backoff=5)
        self.pass_time(4)
        assert self.claim() == []
        self.pass_time(1)
        assert self.claim_one().attempt == 2

    def test_a_release_of_it_is_due_at_once(self) -> None:
        self.register()
        self.publish("a", due_in=60)
        self.pass_time(60)
        self.store.release([self.claim_one()])
        assert self.claim_one().attempt == 1

    def test_many_come_due_at_one_instant_in_publish_order(self) -> None:
        self.register()
        names = [f"m{number:04}" for number in range(1201)]
        self.publish(*names, due_in=60)
        assert self.claim() == []
        self.pass_time(60)
        seen: list[str] = []
        while claims := self.claim(500):
            seen += ids(claims)
        assert seen == names
