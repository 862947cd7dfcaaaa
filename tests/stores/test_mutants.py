"""The state machine has teeth: it rejects stores that are broken on purpose.

Each mutant is the memory store with one rule of the contract taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import Phase

from queue_lib.message import Message
from queue_lib.options import StartFrom
from queue_lib.stores.base import ClaimBatch, Claimed, ClaimRequest, PurgePolicy
from queue_lib.stores.memory import MemoryStore
from queue_lib.stores.memory_rows import Delivery, State
from queue_lib.testing.clock import ManualClock
from queue_lib.testing.machine import check_against_model

MICROSECOND = timedelta(microseconds=1)


class WithoutFencing(MemoryStore):
    """Whoever claimed a delivery once may settle whatever lease there is now."""

    def ack(self, claims: Sequence[Claimed]) -> list[str]:
        current = [replace(c, claim_token=_row(c).token or c.claim_token) for c in claims]
        return super().ack(current)


class ForgetsTheOrder(MemoryStore):
    """Who waits behind a head is due as well."""

    def append(self, messages: Sequence[Message]) -> None:
        super().append(messages)
        for topic in self._topics.values():
            for group in topic.groups.values():
                for lane in group.lanes.values():
                    for delivery in lane:
                        if delivery.state is State.WAITING:
                            delivery.come_forward(self._now())


class CountsNoRetry(MemoryStore):
    """A failed attempt is free."""

    def retry(self, claim: Claimed, backoff: timedelta, last_error: str) -> bool:
        held = super().retry(claim, backoff, last_error)
        if held:
            _row(claim).attempts -= 1
        return held


class CountsNoLostLease(MemoryStore):
    """A lease that runs out is free: a message that kills its process runs for ever."""

    def _lease(self, delivery: Delivery, until: int) -> Claimed:
        if delivery.state is State.EXPIRED:
            delivery.attempts -= 1
        return super()._lease(delivery, until)


class CountsReleases(MemoryStore):
    """Giving back spends an attempt."""

    def release(self, claims: Sequence[Claimed]) -> None:
        for claim in claims:
            if _row(claim).token == claim.claim_token:
                _row(claim).attempts += 1
        super().release(claims)


class ResurrectsTheAcked(MemoryStore):
    """An acked delivery comes back."""

    def ack(self, claims: Sequence[Claimed]) -> list[str]:
        held = set(super().extend(claims, timedelta(hours=1)))
        super().release([claim for claim in claims if claim.delivery_id in held])
        return sorted(held)


class IgnoresTheCap(MemoryStore):
    """Any number may be in flight."""

    def claim(self, request: ClaimRequest) -> ClaimBatch:
        return super().claim(replace(request, max_in_flight=0))


class RevivesExpiredLeases(MemoryStore):
    """A heartbeat that comes too late is welcome."""

    def extend(self, claims: Sequence[Claimed], lease: timedelta) -> list[str]:
        for claim in claims:
            row = _row(claim)
            if row.token == claim.claim_token and row.at < self._now():
                row.move(State.LEASED, self._now())
        return super().extend(claims, lease)


class EndsLeasesEarly(MemoryStore):
    """A lease that ends now is over."""

    def claim(self, request: ClaimRequest) -> ClaimBatch:
        return super().claim(replace(request, lease=request.lease - MICROSECOND))


class DeliversEarly(MemoryStore):
    """A backoff loses its last microsecond."""

    def retry(self, claim: Claimed, backoff: timedelta, last_error: str) -> bool:
        return super().retry(claim, backoff - MICROSECOND, last_error)


class ForgetsPriorities(MemoryStore):
    """First in, first out, whatever the priority."""

    def claim(self, request: ClaimRequest) -> ClaimBatch:
        batch = super().claim(request)
        batch.sort(key=lambda claim: claim.ref.stored.seq)
        return batch


class ForgetsAckedIds(MemoryStore):
    """An id is new again once its message was acked."""

    def append(self, messages: Sequence[Message]) -> None:
        for message in messages:
            stored = self._by_id.get(message.id)
            if stored is not None and not stored.deliveries:
                del self._by_id[message.id]
                del self._topics[stored.message.topic].messages[stored.seq]
                stored.resting = None
        super().append(messages)


class BackfillsTwice(MemoryStore):
    """A second registration from the earliest starts over."""

    def ensure_group(self, topic: str, group: str, start_from: StartFrom) -> None:
        known = self._topics.get(topic)
        if known is not None and group in known.groups and start_from == StartFrom.EARLIEST:
            del known.groups[group]
        super().ensure_group(topic, group, start_from)


class LeavesLanesStuck(MemoryStore):
    """A death brings nobody forward."""

    def kill(self, claim: Claimed, last_error: str) -> bool:
        row = _row(claim)
        lane = row.group.lanes.get(claim.message.key)
        held = super().kill(claim, last_error)
        if held and lane and lane[0].state is State.READY:
            lane[0].move(State.WAITING, 0)
        return held


class ForgetsErrors(MemoryStore):
    """The error of the last attempt is not kept."""

    def retry(self, claim: Claimed, backoff: timedelta, last_error: str) -> bool:
        return super().retry(claim, backoff, "")


class PurgesTooMuch(MemoryStore):
    """The dead are kept no longer than the acked."""

    def purge(self, policy: PurgePolicy, batch: int) -> int:
        return super().purge(replace(policy, dead_retention=policy.acked_retention), batch)


MUTANTS = [
    WithoutFencing, ForgetsTheOrder, CountsNoRetry, CountsNoLostLease, CountsReleases,
    ResurrectsTheAcked, IgnoresTheCap, RevivesExpiredLeases, EndsLeasesEarly, DeliversEarly,
    ForgetsPriorities, ForgetsAckedIds, BackfillsTwice, LeavesLanesStuck, ForgetsErrors,
    PurgesTooMuch,
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_machine_rejects_a_store_that(mutant: Callable[[ManualClock], MemoryStore]) -> None:
    with pytest.raises(AssertionError):
        check_against_model(
            mutant,
            max_examples=400,
            phases=[Phase.generate],  # a failure that is wanted needs no shrinking
            derandomize=True,
            database=None,
        )


def _row(claim: Claimed) -> Delivery:
    row: Delivery = claim.ref
    return row
