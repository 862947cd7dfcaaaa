"""A Hypothesis state machine that drives any store and the reference model side by side.

::

    def test_my_store_agrees_with_the_model():
        check_against_model(lambda clock: MyStore(clock=clock))

Every claim ever made stays in play, so stale tokens keep coming back. All answers are compared,
the order of claims included: it is defined, by (priority, age) among the due.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from queue_lib.durations import microseconds
from queue_lib.message import HEADER_DEAD_LETTER_DELIVERY_ID, Message
from queue_lib.names import delivery_id
from queue_lib.options import StartFrom
from queue_lib.stores.base import (
    AckingClaimer,
    ClaimBatch,
    Claimed,
    ClaimRequest,
    DetailedStats,
    Peeker,
    PurgePolicy,
    Store,
)
from queue_lib.testing.clock import ManualClock
from queue_lib.testing.model import Model, Row

__all__ = ["StoreMachine", "check_against_model"]

MakeStore = Callable[[ManualClock], Store]
"""Returns a new, empty store on the given clock."""

# Few values, so that histories meet: lanes fill up, instants coincide, ids repeat.
_topics = st.sampled_from(["orders", "orders", "orders", "refunds"])
_groups = st.sampled_from(["billing", "billing", "audit"])
_durations = st.sampled_from([0, 2, 4]).map(lambda seconds: timedelta(seconds=seconds))
_leases = st.sampled_from([2, 4, 8]).map(lambda seconds: timedelta(seconds=seconds))
_pauses = st.sampled_from(
    [timedelta(0), timedelta(seconds=2), timedelta(seconds=4), timedelta(microseconds=1)]
)
_errors = st.sampled_from(["first error", "other error", ""])
_operations = st.sampled_from(["ack", "retry", "release", "extend", "kill"])
_drafts = st.fixed_dictionaries(
    {
        "topic": _topics,
        "key": st.sampled_from(["", "", "k", "k", "K", "k "]),
        "priority": st.integers(-1, 1),
        "due_in": st.sampled_from([None, None, 2, 4, -2]),
        "copy": st.sampled_from([False, False, True]),
        # How many messages back to take the id from; none: a new one.
        "repeats": st.sampled_from([None, None, None, 1, 3, 9]),
    }
)
# Half a second beside every boundary: whether an age of exactly the retention is too old is open.
_retentions = st.sampled_from([0.5, 5.5, 20.5]).map(lambda seconds: timedelta(seconds=seconds))

_MARK_OF_A_COPY = {HEADER_DEAD_LETTER_DELIVERY_ID: "00000000-0000-0000-0000-000000000000"}


class StoreMachine(RuleBasedStateMachine):
    """The rules; `check_against_model` runs them."""

    claims = Bundle("claims")

    def __init__(self, make_store: MakeStore) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = make_store(self.clock)
        self.model = Model()
        self.published = 0
        self.made: list[Claimed] = []
        self.attempts: dict[tuple[str, int], int] = {}  # the last seen, by group and seq

    def teardown(self) -> None:
        """End one example."""
        self.store.close()

    @initialize(target=claims, drafts=st.lists(_drafts, min_size=3, max_size=6))
    def begin(self, drafts: Sequence[dict[str, Any]]) -> Any:
        """Begin with a claim: Hypothesis leaves rules out at random, and many need one."""
        self.register("orders", "billing", StartFrom.LATEST)
        self.append([{**draft, "topic": "orders"} for draft in drafts])
        return self.claim("orders", "billing", 2, timedelta(seconds=4), 0, timedelta(0))

    @rule(topic=_topics, group=_groups, start_from=st.sampled_from(StartFrom))
    def register(self, topic: str, group: str, start_from: StartFrom) -> None:
        self.store.ensure_group(topic, group, start_from)
        self.model.register(topic, group, start_from, self.clock())

    @rule(drafts=st.lists(_drafts, min_size=1, max_size=5))
    def append(self, drafts: Sequence[dict[str, Any]]) -> None:
        messages = [self._message(**draft) for draft in drafts]
        self.store.append(messages)
        self.model.append(messages, self.clock())

    def _message(
        self,
        topic: str,
        key: str,
        priority: int,
        due_in: int | None,
        copy: bool,
        repeats: int | None,
    ) -> Message:
        if repeats is None or repeats > self.published:
            self.published += 1
            number = self.published
        else:
            number = self.published - repeats + 1
        return Message(
            topic=topic,
            payload=f"{topic} {key} {priority}".encode(),
            key=key,
            id=f"m{number}",
            headers=_MARK_OF_A_COPY if copy else None,
            deliver_at=None if due_in is None else self.clock.instant(due_in),
            published_at=self.clock.instant(),
            priority=priority,
        )

    @rule(
        target=claims,
        topic=_topics,
        group=_groups,
        limit=st.integers(1, 6),
        lease=_leases,
        cap=st.sampled_from([0, 0, 1, 2, 3]),
        pause=_pauses,
        done=st.lists(st.integers(0, 5), max_size=3),
    )
    def claim(
        self,
        topic: str,
        group: str,
        limit: int,
        lease: timedelta,
        cap: int,
        pause: timedelta,
        done: Sequence[int] = (),
    ) -> Any:
        self.clock.advance(pause)
        now = self.clock()
        request = ClaimRequest(topic, group, "machine", limit, lease, cap)
        if done and isinstance(self.store, AckingClaimer):
            acked = self._pick(done, topic, group)
            held = {claim.delivery_id: row for claim in acked if (row := self.model.held(claim))}
            for row in held.values():
                self.model.ack(row, now)
            expected = self.model.claimable(request, now)
            answer, got = self.store.ack_and_claim(acked, request)
            assert set(answer) == set(held)
        else:
            expected = self.model.claimable(request, now)
            got = self.store.claim(request)
        assert [_seen(claim) for claim in got] == [_foreseen(row, group) for row in expected]
        until = now + microseconds(lease)
        for claim, row in zip(got, expected, strict=True):
            assert all(claim.claim_token != old.claim_token for old in self.made), "not fresh"
            self.made.append(claim)
            self.model.lease(row, claim.claim_token, until)
            known = (group, row.kept.seq)
            assert claim.attempt >= self.attempts.get(known, 1), "attempts fell"
            self.attempts[known] = claim.attempt
        if got and cap:
            rows = self.model.groups[topic, group]
            assert self.model.in_flight(rows, now) <= cap, "more in flight than the cap"
        if isinstance(got, ClaimBatch):
            due = self.model.next_due(topic, group, now)
            was_full = len(got) == limit or cap > 0
            assert got.next_due == due or (was_full and got.next_due is None)
        return multiple(*got)

    def _pick(self, positions: Sequence[int], topic: str, group: str) -> list[Claimed]:
        theirs = [it for it in self.made if (it.message.topic, it.group) == (topic, group)]
        return [theirs[-1 - position] for position in positions if position < len(theirs)]

    @rule(
        operation=_operations,
        # Counted among the claims that still hold, so that most steps do something.
        positions=st.lists(st.integers(0, 5), min_size=1, max_size=4),
        duration=_durations,
        error=_errors,
    )
    def settle(
        self, operation: str, positions: Sequence[int], duration: timedelta, error: str
    ) -> None:
        if holding := [claim for claim in self.made if self.model.held(claim)]:
            indexes = {position % len(holding) for position in positions}
            self.do(operation, [holding[index] for index in sorted(indexes)], duration, error)

    @rule(
        operation=_operations,
        some=st.lists(claims, min_size=1, max_size=4, unique_by=lambda claim: claim.claim_token),
    )
    def any_claim_comes_back(self, operation: str, some: Sequence[Claimed]) -> None:
        self.do(operation, some, timedelta(seconds=3), "by a claim that came back")

    def do(
        self, operation: str, claims: Sequence[Claimed], duration: timedelta, error: str
    ) -> None:
        """Do an operation on both sides and compare the answers."""
        now = self.clock()
        held = {claim.delivery_id: row for claim in claims if (row := self.model.held(claim))}
        match operation:
            case "ack":
                assert set(self.store.ack(claims)) == set(held)
                for row in held.values():
                    self.model.ack(row, now)
            case "release":
                self.store.release(claims)
                for row in held.values():
                    self.model.release(row, now)
            case "extend":
                alive = {name: row for name, row in held.items() if row.lease_end >= now}
                assert set(self.store.extend(claims, duration)) == set(alive)
                for row in alive.values():
                    row.lease_end = now + microseconds(duration)
            case "retry":
                row = self.model.held(claims[0])
                assert self.store.retry(claims[0], duration, error) is (row is not None)
                if row is not None:
                    self.model.retry(row, duration, error, now)
            case "kill":
                row = self.model.held(claims[0])
                assert self.store.kill(claims[0], error) is (row is not None)
                if row is not None:
                    self.model.kill(row, error, now)

    @rule(dead=_retentions, acked=_retentions)
    def purge(self, dead: timedelta, acked: timedelta) -> None:
        policy = PurgePolicy(dead_retention=dead, acked_retention=acked)
        assert self.store.purge(policy, 1000) == self.model.purge(policy, self.clock())

    @rule(pause=_pauses)
    def time_passes(self, pause: timedelta) -> None:
        self.clock.advance(pause)

    @invariant()
    def peeks_agree(self) -> None:
        if not isinstance(self.store, Peeker):
            return
        now, names = self.clock(), list(self.model.groups)
        for (topic, group), peek in zip(names, self.store.peek(names), strict=True):
            anything = ClaimRequest(topic, group, "machine", 1, timedelta(seconds=1))
            assert peek.may_claim is bool(self.model.claimable(anything, now))
            if not peek.may_claim:
                assert peek.next_due == self.model.next_due(topic, group, now)

    @invariant()
    def stats_agree(self) -> None:
        for topic, group in self.model.groups:
            assert self.store.stats(topic, group) == self.model.stats(topic, group)
            if isinstance(self.store, DetailedStats):
                close = self.model.group_stats(topic, group, self.clock())
                assert self.store.group_stats(topic, group) == close

    @invariant()
    def each_lane_has_one_head(self) -> None:
        for rows in self.model.groups.values():
            for row in rows:
                assert row.token is None or self.model.is_head(row, rows)


def check_against_model(make_store: MakeStore, **options: Any) -> None:
    """Run the machine; raises `AssertionError` and prints the steps that led to a disagreement.

    `options` go to `hypothesis.settings`; what is missing comes from the profile in force.
    """

    class ThisStoreMachine(StoreMachine):
        def __init__(self) -> None:
            super().__init__(make_store)

    given = {
        "stateful_step_count": 40,
        "deadline": None,
        "suppress_health_check": list(HealthCheck),
        **options,
    }
    run_state_machine_as_test(ThisStoreMachine, settings=settings(**given))


def _seen(claim: Claimed) -> tuple[object, ...]:
    return claim.delivery_id, claim.group, claim.attempt, claim.last_error, claim.message


def _foreseen(row: Row, group: str) -> tuple[object, ...]:
    # A lease that ran out has spent an attempt by the time it is claimed again.
    attempt = row.attempts + 1 + (row.token is not None)
    return delivery_id(row.kept.message.id, group), group, attempt, row.error, row.kept.message
