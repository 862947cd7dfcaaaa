"""What producers publish and what handlers receive."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

__all__ = [
    "HEADER_DEAD_LETTER_ATTEMPTS",
    "HEADER_DEAD_LETTER_DELIVERY_ID",
    "HEADER_DEAD_LETTER_ERROR",
    "HEADER_DEAD_LETTER_GROUP",
    "HEADER_DEAD_LETTER_MESSAGE_ID",
    "HEADER_DEAD_LETTER_SOURCE_TOPIC",
    "CancelReason",
    "Cancellation",
    "Delivery",
    "Message",
]

HEADER_DEAD_LETTER_SOURCE_TOPIC = "x-queue-dlq-source-topic"
"""On a dead-letter copy: the topic that the delivery came from."""
HEADER_DEAD_LETTER_GROUP = "x-queue-dlq-group"
"""On a dead-letter copy: the consumer group that gave up."""
HEADER_DEAD_LETTER_DELIVERY_ID = "x-queue-dlq-delivery-id"
"""On a dead-letter copy: the id of the dead delivery."""
HEADER_DEAD_LETTER_MESSAGE_ID = "x-queue-dlq-message-id"
"""On a dead-letter copy: the id of the original message."""
HEADER_DEAD_LETTER_ATTEMPTS = "x-queue-dlq-attempts"
"""On a dead-letter copy: how many attempts were spent, in decimal."""
HEADER_DEAD_LETTER_ERROR = "x-queue-dlq-error"
"""On a dead-letter copy: the text of the error that ended it."""


@dataclass(slots=True)
class Message:
    """A unit of data published to a topic."""

    topic: str
    """Required: 1 to 200 characters of ``[A-Za-z0-9._-]``."""
    payload: bytes = field(default=b"", repr=False)
    """Opaque to the queue; every byte comes back as it was."""
    key: str = ""
    """Empty: no order. Else strict first-in-first-out for each (topic, group, key)."""
    id: str = ""
    """Set by `publish` when empty. Publishing an id again stores nothing."""
    headers: dict[str, str] | None = None
    """Optional metadata, text to text."""
    deliver_at: datetime | None = None
    """Not handed out before this instant. Aware; at most the queue's retention ahead.

    A handler sees it in UTC."""
    published_at: datetime | None = None
    """Set by `publish` when empty, by the producer's clock. A handler sees it in UTC."""
    priority: int = 0
    """Lower is handed out first among due deliveries; never breaks the order of a key."""


CancelReason = str
"""Why a run was cancelled: ``"closed"`` (the subscription) or ``"lease lost"``."""


class Cancellation:
    """The cancellation signal of one run: read and waited on like a `threading.Event`.

    The event behind it is made only when somebody waits: most runs never do. Thread-safe. Copying
    a delivery keeps its signal; pickling it takes a snapshot, for no signal leaves the process.
    """

    __slots__ = ("_event", "_lock", "_reason")

    def __init__(self, reason: CancelReason | None = None) -> None:
        self._lock = threading.Lock()  # one for each run: a fork cannot leave it locked for others
        self._reason = reason  # guarded by _lock for writing
        self._event: threading.Event | None = None  # guarded by _lock

    @property
    def reason(self) -> CancelReason | None:
        """Why the run was cancelled, or `None` while it is not."""
        return self._reason

    def is_set(self) -> bool:
        """Say whether the run was cancelled."""
        return self._reason is not None

    __bool__ = is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the run is cancelled or `timeout` seconds passed; say which."""
        with self._lock:
            if self._reason is not None:
                return True
            if self._event is None:
                self._event = threading.Event()
            event = self._event
        return event.wait(timeout)

    def cancel(self, reason: CancelReason) -> None:
        """Set the signal; the first reason stays. Called by the engine."""
        with self._lock:
            if self._reason is None:
                self._reason = reason
            if self._event is not None:
                self._event.set()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._reason,)


@dataclass(slots=True)
class Delivery(Message):
    """A message handed to one consumer group's handler."""

    delivery_id: str = ""
    """Stable across redeliveries of the message to the group: deduplicate on it."""
    group: str = ""
    """The consumer group."""
    attempt: int = 1
    """1 for the first attempt."""
    cancelled: Cancellation = field(default_factory=Cancellation, compare=False, repr=False)
    """Set when the subscription closes or the lease is lost: stop working, the outcome is void."""

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why this run was cancelled (``"closed"`` or ``"lease lost"``), else `None`."""
        return self.cancelled.reason
