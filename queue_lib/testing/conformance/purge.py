"""`Store.purge`: what has outlived its use goes, in batches; nothing else ever does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from queue_lib.message import HEADER_DEAD_LETTER_DELIVERY_ID
from queue_lib.options import StartFrom
from queue_lib.stores.base import Stats
from queue_lib.testing.conformance.case import StoreCase, every_test_requires, ids

__all__ = ["PurgeConformance"]

AGES = timedelta(days=1000)
COPY = {HEADER_DEAD_LETTER_DELIVERY_ID: "00000000-0000-0000-0000-000000000000"}
"""What marks a dead-letter copy."""


@every_test_requires("clock")
class PurgeConformance(StoreCase):
    """Purging."""

    def replayed(self) -> list[str]:
        """Return the ids of the messages that are still retained."""
        self._late = getattr(self, "_late", 0) + 1
        group = f"late-{self._late}"
        self.register(group, start_from=StartFrom.EARLIEST)
        return self.drain(group)

    # -- what stays ------------------------------------------------------------------------

    def test_nothing_young_goes(self) -> None:
        self.register()
        self.publish("acked", "dead")
        acked, dead = self.claim()
        self.ack(acked)
        self.kill(dead)
        self.publish("unheard", topic="nobody")
        self.pass_time(99)
        assert self.purge(dead=100, acked=100) == 0
        assert self.stats() == Stats(dead=1)
        assert self.replayed() == ["acked", "dead"]

    @pytest.mark.parametrize("state", ["due", "retried", "leased", "expired", "released"])
    def test_nothing_live_goes_however_old(self, state: str) -> None:
        self.register()
        self.publish("head", "waiting", key="k", payload=b"x")
        self.publish("plain", payload=b"x")
        claims = self.claim(lease=AGES * 3 if state == "leased" else 60)
        if state == "due":
            self.store.release(claims)
        elif state == "retried":
            for claim in claims:
                self.retry(claim, backoff=60)
        elif state == "released":
            self.pass_time(AGES)
            self.store.release(claims)
        before = self.stats()
        self.pass_time(AGES)
        assert self.purge(dead=0, acked=0) == 0
        assert self.stats() == before
        if state == "leased":
            self.store.release(claims)
        assert self.drain() == ["head", "plain", "waiting"]

    def test_nothing_scheduled_goes_however_short_the_retention(self) -> None:
        self.register()
        self.publish("a", due_in=AGES)
        self.pass_time(AGES - timedelta(seconds=1))
        assert self.purge(dead=0, acked=0) == 0
        self.pass_time(1)
        assert self.drain() == ["a"]

    def test_nothing_that_another_group_needs_goes(self) -> None:
        self.register("fast")
        self.register("slow")
        self.publish("a", payload=b"x")
        assert self.drain("fast") == ["a"]
        self.pass_time(AGES)
        assert self.purge(dead=0, acked=0) == 0
        assert self.claim_one(group="slow").message.payload == b"x"

    def test_a_dead_delivery_keeps_its_message_for_inspection(self) -> None:
        self.register()
        self.publish("a")
        self.kill(self.claim_one())
        self.pass_time(50)
        assert self.purge(dead=100, acked=10) == 0
        assert self.stats() == Stats(dead=1)
        assert self.replayed() == ["a"]

    # -- what goes, and when ---------------------------------------------------------------

    def test_an_acked_message_goes_after_the_acked_retention(self) -> None:
        self.register()
        self.publish("a")
        self.pass_time(60)
        self.ack(self.claim_one())
        self.pass_time(39)
        assert self.purge(acked=100) == 0
        self.pass_time(2)  # 101 s after it was stored, 41 s after its ack
        assert self.purge(acked=100) == 1
        assert self.replayed() == []
        assert self.purge(acked=100) == 0

    def test_a_message_without_any_group_goes_too(self) -> None:
        self.publish("a", "b")
        self.pass_time(101)
        self.publish("young")
        assert self.purge(acked=100) == 2
        assert self.replayed() == ["young"]

    def test_a_scheduled_message_ages_from_its_due_time(self) -> None:
        self.register()
        self.publish("a", due_in=1000)
        self.publish("unheard", topic="nobody", due_in=1000)
        self.pass_time(1000)
        assert self.drain() == ["a"]
        self.pass_time(99)
        assert self.purge(acked=100) == 0
        self.pass_time(2)
        assert self.purge(acked=100) == 2

    def test_a_schedule_in_the_past_ages_nothing(self) -> None:
        self.publish("a", due_in=-1000)
        self.pass_time(99)
        assert self.purge(acked=100) == 0
        self.pass_time(2)
        assert self.purge(acked=100) == 1

    def test_a_dead_delivery_ages_from_its_death(self) -> None:
        self.register()
        self.publish("a")
        self.pass_time(1000)
        self.kill(self.claim_one())
        self.pass_time(99)
        assert self.purge(dead=100) == 0
        self.pass_time(2)
        assert self.purge(dead=100) == 1
        assert self.stats() == Stats()
        assert self.replayed() == ["a"]  # the message itself is not old enough yet

    def test_one_pass_takes_a_dead_delivery_and_then_its_message(self) -> None:
        self.register()
        self.register("audit")
        self.publish("a")
        self.kill(self.claim_one())
        self.ack(self.claim_one(group="audit"))
        self.pass_time(101)
        assert self.purge(dead=100, acked=100) == 2
        assert self.replayed() == []

    def test_a_purged_id_can_be_stored_again(self) -> None:
        self.register()
        self.publish("a", payload=b"first")
        self.drain()
        self.pass_time(101)
        assert self.purge(acked=100) == 1
        self.publish("a", payload=b"second")
        assert self.claim_one().message.payload == b"second"

    def test_a_batch_bounds_each_kind(self) -> None:
        self.register()
        self.publish(*(f"dead{number}" for number in range(5)))
        for claim in self.claim():
            self.kill(claim)
        self.publish(*(f"done{number}" for number in range(5)))
        self.drain()
        self.pass_time(101)
        passes = []
        while gone := self.purge(dead=100, acked=100, batch=2):
            passes.append(gone)
        assert sum(passes) == 15  # five deliveries, ten messages
        assert max(passes) == 4
        assert self.stats() == Stats()
        assert self.replayed() == []

    def test_a_message_taken_by_a_late_group_waits_for_it(self) -> None:
        self.register()
        self.publish("a")
        self.drain()
        self.pass_time(101)
        self.register("late", start_from=StartFrom.EARLIEST)
        assert self.purge(acked=100) == 0
        assert self.drain("late") == ["a"]
        assert self.purge(acked=100) == 1

    # -- dead-letter copies ----------------------------------------------------------------

    def test_a_copy_that_no_group_took_is_kept_as_long_as_the_dead(self) -> None:
        self.publish("copy", headers=COPY)
        self.publish("plain")
        self.pass_time(101)
        assert self.purge(dead=1000, acked=100) == 1
        self.pass_time(898)
        assert self.purge(dead=1000, acked=100) == 0
        self.pass_time(2)
        assert self.purge(dead=1000, acked=100) == 1
        assert self.replayed() == []

    def test_a_copy_that_a_late_group_took_is_a_message_like_any_other(self) -> None:
        self.publish("copy", headers=COPY)
        self.pass_time(101)
        self.register(start_from=StartFrom.EARLIEST)
        claim = self.claim_one()
        assert claim.message.headers == COPY
        assert self.purge(dead=1000, acked=100) == 0
        self.ack(claim)
        assert self.purge(dead=1000, acked=100) == 1

    def test_a_copy_for_a_group_is_a_message_like_any_other(self) -> None:
        self.register()
        self.publish("copy", headers=COPY)
        self.drain()
        self.pass_time(101)
        assert self.purge(dead=1000, acked=100) == 1

    def test_a_copy_that_a_late_group_skipped_is_still_untaken(self) -> None:
        self.publish("copy", headers=COPY)
        self.register()
        self.pass_time(101)
        assert self.purge(dead=1000, acked=100) == 0
        assert ids(self.claim()) == []
        assert self.replayed() == ["copy"]
