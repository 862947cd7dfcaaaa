"""One claimed delivery on its way through the engine."""

from __future__ import annotations

import enum
import time

from queue_lib.logs import get_logger
from queue_lib.message import Cancellation, CancelReason, Delivery
from queue_lib.stores.base import Claimed

__all__ = ["Phase", "Run"]

_logger = get_logger("queue_lib.engine")


class Phase(enum.Enum):
    """Where a run is. It only ever moves downwards, and leaves `VOID` never."""

    WAITING = 1  # claimed, no thread yet
    RUNNING = 2  # its handler runs
    SETTLING = 3  # the handler ended; its outcome is being written
    VOID = 4  # lost, released or settled: nothing may be written for it any more


class Run:
    """A claim, its cancellation signal, and until when its lease is known to be held.

    `phase` is changed by `Ledger` alone, under its lock.
    """

    __slots__ = ("cancelled", "claim", "held_until", "phase", "renew_until")

    def __init__(self, claim: Claimed, held_until: float) -> None:
        self.claim = claim
        self.cancelled = Cancellation()
        self.phase = Phase.WAITING
        self.held_until = held_until  # monotonic; confirmed by the store
        self.renew_until: float | None = None  # set while an outcome cannot be written: then let go

    @property
    def may_renew(self) -> bool:
        """Whether the heartbeat should go on renewing the lease."""
        return self.renew_until is None or time.monotonic() < self.renew_until

    def cancel(self, reason: CancelReason) -> None:
        """Tell the handler to stop; its outcome is void."""
        self.cancelled.cancel(reason)

    def report_lost(self) -> None:
        """Log that the lease was lost and the run cancelled."""
        claim = self.claim
        _logger.warning(
            "delivery %s of %s to %s (attempt %d): the lease is lost, its run is cancelled",
            claim.delivery_id, claim.message.topic, claim.group, claim.attempt,
        )  # fmt: skip

    def report_abandoned(self) -> None:
        """Log that the handler outlasted a close, so that its delivery is given back."""
        claim = self.claim
        _logger.warning(
            "delivery %s of %s to %s (attempt %d): its handler has not ended in time, it is given "
            "back",
            claim.delivery_id, claim.message.topic, claim.group, claim.attempt,
        )  # fmt: skip

    def delivery(self) -> Delivery:
        """Make what the handler gets."""
        claim, message = self.claim, self.claim.message
        return Delivery(
            message.topic,
            message.payload,
            message.key,
            message.id,
            None if message.headers is None else dict(message.headers),  # the claim's stay as is
            message.deliver_at,
            message.published_at,
            message.priority,
            claim.delivery_id,
            claim.group,
            claim.attempt,
            self.cancelled,
        )
