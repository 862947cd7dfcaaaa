"""Looking at many groups at once: what it says of a group is what a claim would find."""

from __future__ import annotations

from datetime import timedelta

from queue_lib.stores.base import Peek, Peeker, Stats
from queue_lib.testing.conformance.case import GROUP, TOPIC, StoreCase, every_test_requires, ids

__all__ = ["PeekConformance"]

NOTHING = Peek(may_claim=False, next_due=None)
READY = Peek(may_claim=True, next_due=None)


@every_test_requires("peek", "clock")
class PeekConformance(StoreCase):
    """`Peeker`."""

    def peek(self, *groups: tuple[str, str]) -> list[Peek]:
        """Look at groups; the usual one if none is named."""
        assert isinstance(self.store, Peeker)
        return self.store.peek(groups or [(TOPIC, GROUP)])

    def test_each_group_is_answered_for_in_the_order_asked(self) -> None:
        self.register()
        self.register("audit")
        self.publish("a")
        self.store.ack(self.claim(group="audit"))
        billing, audit = (TOPIC, GROUP), (TOPIC, "audit")
        unknown = ("nowhere", GROUP)
        assert self.peek(audit, unknown, billing, audit, billing) == [
            NOTHING, NOTHING, READY, NOTHING, READY,
        ]  # fmt: skip
        assert self.peek(unknown) == [NOTHING]
        assert self.store.peek([]) == []  # type: ignore[attr-defined]

    def test_it_changes_nothing(self) -> None:
        self.register()
        self.publish("a", "b")
        for _ in range(3):
            assert self.peek() == [READY]
        assert self.stats() == Stats(pending=2)
        assert [claim.attempt for claim in self.claim()] == [1, 1]

    def test_a_schedule_and_a_backoff_are_told_until_they_are_over(self) -> None:
        self.register()
        self.publish("later", due_in=60)
        self.publish("soon")
        (soon,) = self.claim()
        self.store.retry(soon, timedelta(seconds=20), "why")
        assert self.peek() == [Peek(may_claim=False, next_due=timedelta(seconds=20))]
        self.pass_time(5)
        assert self.peek() == [Peek(may_claim=False, next_due=timedelta(seconds=15))]
        self.pass_time(15)
        (over,) = self.peek()
        assert over.may_claim
        assert ids(self.claim()) == ["soon"]
        assert self.peek() == [Peek(may_claim=False, next_due=timedelta(seconds=40))]

    def test_a_lease_is_nothing_to_do_until_it_has_run_out(self) -> None:
        self.register()
        self.publish("a")
        self.claim(lease=30)
        self.pass_time(30)
        assert self.peek() == [NOTHING]  # it ends after that instant
        self.pass_time(0.000_001)
        assert self.peek() == [READY]
        assert ids(self.claim()) == ["a"]

    def test_who_waits_behind_its_key_is_nothing_to_do(self) -> None:
        self.register()
        self.publish("a", "b", key="k")
        (head,) = self.claim()
        assert self.peek() == [NOTHING]
        self.store.ack([head])
        assert self.peek() == [READY]

    def test_the_dead_are_nothing_to_do(self) -> None:
        self.register()
        self.publish("a")
        (claim,) = self.claim()
        self.store.kill(claim, "why")
        assert self.peek() == [NOTHING]

    def test_a_thousand_groups_at_once(self) -> None:
        groups = [(f"topic-{number}", GROUP) for number in range(1000)]
        for topic, group in groups[::100]:
            self.register(group, topic=topic)
            self.publish(f"to {topic}", topic=topic)
        assert [peek.may_claim for peek in self.peek(*groups)] == [
            number % 100 == 0 for number in range(1000)
        ]
