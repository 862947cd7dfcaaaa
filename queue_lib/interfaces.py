"""What applications program against: the queue, its two halves, and a running subscription."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from queue_lib.message import Delivery, Message
from queue_lib.options import SubscribeOptions
from queue_lib.stores.base import Stats

__all__ = [
    "Handler",
    "Health",
    "Publisher",
    "Queue",
    "Subscriber",
    "Subscription",
    "SubscriptionHealth",
]

Handler = Callable[[Delivery], object]
"""Processes one delivery, in a thread of the subscription.

Returning acknowledges it, whatever is returned. Raising schedules a retry with backoff; raising
`Permanent`, or failing the last attempt, dead-letters it. Must be idempotent: a delivery whose
lease was lost runs again elsewhere.
"""


H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True)
class SubscriptionHealth:
    """How one subscription is doing."""

    topic: str
    """What it consumes."""
    group: str
    """Its consumer group."""
    running: bool
    """Its threads are alive in this process."""
    held: int
    """Deliveries that it holds at the moment."""
    since_claim: timedelta | None
    """Time since the store last answered a claim or a look for work; `None` if it never did."""
    since_heartbeat: timedelta | None
    """Time since the store last answered a heartbeat; `None` if there was nothing to renew yet."""
    error: str | None
    """The last error of one of its threads, cleared by the next success."""


@dataclass(frozen=True, slots=True)
class Health:
    """How a queue is doing in this process."""

    ok: bool
    """Every subscription runs without an error."""
    subscriptions: tuple[SubscriptionHealth, ...]
    """Those that were not closed."""
    errors: tuple[str, ...] = ()
    """The last errors of the janitor and the listener, if their last round failed."""


@runtime_checkable
class Publisher(Protocol):
    """Publishes messages to topics."""

    def publish(self, *messages: Message, connection: Any = None) -> None:
        """Store messages durably and fan each out to every group registered on its topic.

        All or nothing. Fills `id` and `published_at` where they are empty, so that calling
        again with the same objects is safe: an id that is stored already is a no-op. Faults
        that may pass are retried three times. Blocks; thread-safe.

        `connection`: a SQLAlchemy `Connection` or `Session` in whose transaction to write. The
        messages are visible at its commit and gone at its rollback; nothing is retried.

        Raises:
            InvalidRequestError: a message cannot be stored; none was. Of several it tells which,
                counted from 1.
            StoreUnavailableError: the store could not be reached.
            UnsupportedError: the store cannot write in the caller's transaction.
            QueueClosedError: the queue is closed.
        """
        ...


@runtime_checkable
class Subscription(Protocol):
    """A running consumer."""

    def close(self, timeout: float | timedelta | None = None) -> bool:
        """Stop consuming; return whether every handler ended.

        Claims nothing more, gives back what was not started, and waits up to `timeout` (`None`:
        for ever) for the running handlers, whose leases stay renewed. Then it cancels what is
        left and releases its leases, so that another consumer takes over at once; outcomes of
        those runs are refused. Blocks for the timeout plus a second at most. Idempotent;
        callable from any thread, also from a handler: that does not wait for itself and, since it
        has not ended, gets `False`.

        Raises:
            InvalidOptionsError: `timeout` is no duration, or negative; nothing was closed.
        """
        ...


@runtime_checkable
class Subscriber(Protocol):
    """Attaches handlers to topics as members of a consumer group."""

    def subscribe(
        self,
        topic: str,
        group: str,
        handler: Handler,
        options: SubscribeOptions | None = None,
        **fields: Any,
    ) -> Subscription:
        """Register `group` on `topic` if it is new, and deliver to `handler` until closed.

        `options`, or its fields as keywords; not both.

        Raises:
            InvalidRequestError: a name, an option or the handler; nothing was registered.
            LockerRequiredError: the store needs a locker to consume; nothing was registered.
            QueueClosedError: the queue is closed.
        """
        ...

    def subscriber(
        self, topic: str, group: str, options: SubscribeOptions | None = None, **fields: Any
    ) -> Callable[[H], H]:
        """Subscribe the decorated function, at once; it stays callable as it was.

        ::

            @queue.subscriber("orders", "billing", concurrency=8)
            def bill(delivery): ...

        Takes and raises what `subscribe` does. `Queue.close` ends the subscription.
        """
        ...


@runtime_checkable
class Queue(Publisher, Subscriber, Protocol):
    """The contract that every queue implementation satisfies. Thread-safe."""

    def stats(self, topic: str, group: str) -> Stats:
        """Count the deliveries of one group; an unknown group has none."""
        ...

    def ping(self) -> None:
        """Raise `StoreError` unless the store is reachable and has its tables."""
        ...

    def health(self) -> Health:
        """Tell how the threads of this queue are doing. Does not touch the store."""
        ...

    def close(self, timeout: float | timedelta | None = None) -> bool:
        """Close every subscription, then what the queue owns; return whether all handlers ended.

        Afterwards every call raises `QueueClosedError`, except `close`. Blocks for the timeout
        (`None`: until the handlers ended) plus a second at most. From a handler: as
        `Subscription.close`.

        Raises:
            InvalidOptionsError: `timeout` is no duration, or negative; nothing was closed.
        """
        ...

    def __enter__(self) -> Self:
        """Use the queue as a context manager: leaving it closes it."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the queue and wait for its handlers."""
        ...
