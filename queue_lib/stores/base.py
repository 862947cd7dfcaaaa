"""The storage SPI behind the engine: what a backend must do, and what it may do besides.

Durations, never instants of a client's clock, cross this interface: a store turns them into
deadlines on its own clock, which keeps leases right when the clocks of instances disagree. (The
two instants in a `Message`, `published_at` and `deliver_at`, are the producer's.)

Every operation after `Store.claim` is fenced on `Claimed.claim_token`. A claim *holds* its
delivery while the delivery is leased under that very token, even if the lease has just run out,
as long as nobody claimed it again. An operation with a token that does not hold changes nothing
and says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, Protocol, runtime_checkable

from queue_lib.message import Message
from queue_lib.options import StartFrom

__all__ = [
    "AckingClaimer",
    "ClaimBatch",
    "ClaimRequest",
    "Claimed",
    "ConsumeChecker",
    "DetailedStats",
    "ForkAware",
    "GroupStats",
    "Peek",
    "Peeker",
    "PurgePolicy",
    "Stats",
    "Store",
    "TransactionalStore",
    "WakeSource",
]


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """One claim."""

    topic: str
    """Whose messages."""
    group: str
    """Whose deliveries."""
    runner_id: str
    """Who claims: for debugging only."""
    max: int
    """Deliveries to lease at most."""
    lease: timedelta
    """How long the leases last without renewal."""
    max_in_flight: int = 0
    """Cap on the group's unexpired leases over all instances; 0 means none."""


@dataclass(slots=True)
class Claimed:
    """A delivery leased to one consumer."""

    delivery_id: str
    """Deterministic; see `queue_lib.delivery_id`."""
    claim_token: str
    """Fences every write made under this claim."""
    group: str
    """The consumer group."""
    attempt: int
    """The attempt that this claim stands for, from 1."""
    message: Message
    """The delivered message."""
    last_error: str = ""
    """What `Store.retry` last recorded for this delivery; empty if it never failed."""
    ref: Any = field(default=None, repr=False, compare=False)
    """Where the store finds its row again. Meaningless to everybody else."""


class ClaimBatch(list[Claimed]):
    """What a claim returned, and when looking again is worth while.

    A store may return a plain list instead; the engine then relies on its poll interval.
    """

    __slots__ = ("next_due",)

    def __init__(
        self, claims: Iterable[Claimed] = (), *, next_due: timedelta | None = None
    ) -> None:
        super().__init__(claims)
        self.next_due = next_due
        """How long until the group's next scheduled or backing-off delivery is due; `None` if
        there is none, or if the claim was full and nobody looked."""


@dataclass(frozen=True, slots=True)
class PurgePolicy:
    """How long finished rows are kept."""

    dead_retention: timedelta
    """Dead deliveries, kept for inspection."""
    acked_retention: timedelta
    """Messages that no delivery needs any more, kept for late `earliest` groups."""


@dataclass(frozen=True, slots=True)
class Stats:
    """A point-in-time count of one group's deliveries."""

    pending: int = 0
    """To be claimed: due, scheduled, backing off, or waiting behind their key."""
    leased: int = 0
    """Held by a consumer."""
    dead: int = 0
    """Dead-lettered and not yet purged."""


@dataclass(frozen=True, slots=True)
class GroupStats:
    """One group's deliveries, told apart. `pending` in `Stats` is the sum of the first four."""

    ready: int = 0
    """Due: may be claimed now."""
    scheduled: int = 0
    """Not due yet, never attempted."""
    retrying: int = 0
    """Backing off after a failed attempt."""
    behind_key: int = 0
    """Waiting for an earlier delivery of the same key."""
    leased: int = 0
    """Held by a consumer."""
    dead: int = 0
    """Dead-lettered and not yet purged."""
    oldest_ready_age: timedelta | None = None
    """How long the oldest due delivery has been due; `None` if none is."""


@runtime_checkable
class Store(Protocol):
    """Storage behind the engine. Every method is safe to call from any thread.

    A store raises `StoreUnavailableError` for faults that may pass and `StoreError` for others;
    either way the operation changed nothing, or its answer was lost and calling it again is safe.
    """

    def ensure_group(self, topic: str, group: str, start_from: StartFrom) -> None:
        """Register `group` on `topic`; an existing group is left alone, whatever `start_from`.

        A new group that starts from `StartFrom.EARLIEST` gets one delivery for each retained
        message, in publish order. A message published at the same moment is in that backfill or
        fans out to the new group: never both, never neither.
        """
        ...

    def append(self, messages: Sequence[Message]) -> None:
        """Store messages, which carry ids and publish times, and fan each out to the groups.

        All or nothing. Idempotent: an id that exists, also on another topic, is left untouched
        with all its deliveries; of two equal ids in one call the first wins. Order within a
        (topic, group, key) is the order in which appends commit.
        """
        ...

    def claim(self, request: ClaimRequest) -> list[Claimed]:
        """Lease up to `request.max` due deliveries, by (priority, age), each under a fresh token.

        Due is a delivery whose schedule and backoff have passed, or whose lease ended before
        now, and, with a key, no earlier delivery of that key is pending or leased. With
        `request.max_in_flight` the group's unexpired leases never exceed it. An unknown group
        has nothing to claim. Thousands that become due at one moment may be taken in slices,
        each in order.
        """
        ...

    def ack(self, claims: Sequence[Claimed]) -> list[str]:
        """Complete deliveries; return the delivery ids that were held, the rest is untouched."""
        ...

    def retry(self, claim: Claimed, backoff: timedelta, last_error: str) -> bool:
        """Count a failed attempt and make the delivery due again after `backoff`.

        Returns `False` if `claim` no longer holds it.
        """
        ...

    def kill(self, claim: Claimed, last_error: str) -> bool:
        """Count a failed attempt and dead-letter the delivery; `False` if no longer held."""
        ...

    def extend(self, claims: Sequence[Claimed], lease: timedelta) -> list[str]:
        """Renew unexpired leases to `lease` from now; return the delivery ids still held.

        Every delivery that is missing from the answer is lost.
        """
        ...

    def release(self, claims: Sequence[Claimed]) -> None:
        """Give deliveries back, due at once, without counting an attempt."""
        ...

    def purge(self, policy: PurgePolicy, batch: int) -> int:
        """Delete up to `batch` dead deliveries and up to `batch` messages that outlived `policy`.

        A dead delivery ages from its death; a message from the later of being stored and being
        due, and only once no delivery needs it. A dead-letter copy that no group ever took is
        kept for the dead retention. Returns how many rows went.
        """
        ...

    def stats(self, topic: str, group: str) -> Stats:
        """Count the group's deliveries; an unknown group has none."""
        ...

    def ping(self) -> None:
        """Raise unless the store is reachable and its tables are there."""
        ...

    def close(self) -> None:
        """Release the store's own resources, never an engine it borrowed. Idempotent."""
        ...


@runtime_checkable
class ConsumeChecker(Protocol):
    """A store that can consume only under some condition, such as having a locker."""

    def can_consume(self) -> None:
        """Raise (`LockerRequiredError`, say) if consuming is not possible."""
        ...


@runtime_checkable
class AckingClaimer(Protocol):
    """A store that acknowledges and claims faster in one step than in two."""

    def ack_and_claim(
        self, claims: Sequence[Claimed], request: ClaimRequest
    ) -> tuple[list[str], list[Claimed]]:
        """Do `Store.ack`, then `Store.claim`, both or neither; return both answers.

        The claim finds what the acknowledgements let through: slots under the cap, the next of
        a key. `claims` are of the group of `request`.
        """
        ...


class Peek(NamedTuple):
    """What one group has to do."""

    may_claim: bool
    """A claim may find something. `False` is certain: it would have found nothing at that moment.
    `True` may be wrong, where the cap is reached or another claim is under way."""
    next_due: timedelta | None
    """If not: how long until the group's next scheduled or backing-off delivery is due; `None` if
    there is none."""


@runtime_checkable
class Peeker(Protocol):
    """A store that can look at many groups in one step, without changing anything.

    Then idle subscriptions need no poll of their own.
    """

    def peek(self, groups: Sequence[tuple[str, str]]) -> list[Peek]:
        """Look at each (topic, group); an unknown one has nothing to do."""
        ...


@runtime_checkable
class WakeSource(Protocol):
    """A store that can report publishes made by other instances: a matter of latency only."""

    def listen(self, wake: Callable[[str], None], stop: threading.Event) -> None:
        """Call `wake` with a topic each time something is published to it, until `stop` is set.

        `wake("")` means "any topic". Blocks; the engine runs it in a thread of its own, and
        calls it again, after a pause, when it raises. Returns promptly once `stop` is set.

        Raises:
            UnsupportedError: the store has no way to listen; the engine does not ask again.
        """
        ...


@runtime_checkable
class TransactionalStore(Protocol):
    """A store that can append inside a transaction of the caller."""

    def append_in(self, connection: Any, messages: Sequence[Message]) -> None:
        """Do `Store.append` through the caller's SQLAlchemy `Connection` or `Session`.

        Visible at the caller's commit and gone at the rollback, also of a savepoint. Never
        commits, rolls back, retries or closes.
        """
        ...


@runtime_checkable
class DetailedStats(Protocol):
    """A store that can tell apart why deliveries are pending."""

    def group_stats(self, topic: str, group: str) -> GroupStats:
        """Count the group's deliveries by what they wait for; an unknown group has none."""
        ...


@runtime_checkable
class ForkAware(Protocol):
    """A store with connections, locks or threads that must not be shared with a forked child."""

    def before_fork(self) -> None:
        """Bring locks and connections into a state that survives the fork; parent, before."""
        ...

    def after_fork(self, *, child: bool) -> None:
        """Undo `before_fork` in the parent; in the child, forget what belongs to the parent."""
        ...
