"""The queue over any `Store`: publish, subscribe, and the life of everything it started."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from tenacity import (
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential,
)

from queue_lib.config import EngineConfig
from queue_lib.engine.handlers import check_handler
from queue_lib.engine.lifecycle import Deadline, Service
from queue_lib.engine.poller import Poller
from queue_lib.engine.publish import check_messages, fill_in
from queue_lib.engine.pump import Pump
from queue_lib.engine.subscription import GRACE, StoreSubscription
from queue_lib.engine.upkeep import janitor, listener
from queue_lib.errors import (
    DeadLetterLoopError,
    InvalidOptionsError,
    QueueClosedError,
    StoreUnavailableError,
    UnsupportedError,
    shown,
)
from queue_lib.forks import follow_forks, leave_forks
from queue_lib.interfaces import Handler, Health
from queue_lib.message import Message
from queue_lib.names import validate_name
from queue_lib.options import SubscribeOptions, check_known
from queue_lib.stores.base import (
    ConsumeChecker,
    DetailedStats,
    ForkAware,
    GroupStats,
    Peeker,
    Stats,
    Store,
    TransactionalStore,
    WakeSource,
)

__all__ = ["StoreQueue", "new_store_queue"]

H = TypeVar("H", bound=Handler)
T = TypeVar("T")

_PATIENCE = 3.0  # seconds after which a failed publish is not tried again


class StoreQueue:
    """A `Queue` on a `Store`, which it owns and closes. Thread-safe.

    Background threads start with the first publish or subscribe. After a fork the child may
    publish and subscribe; the parent's subscriptions go on in the parent alone.
    """

    def __init__(self, store: Store, config: EngineConfig) -> None:
        self._store = store
        self._config = config
        self._closing = False  # no new subscriptions; guarded by _lock for writing
        self._closed = False  # nothing goes any more; guarded by _lock for writing
        self._reset()
        follow_forks(self)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._subscriptions: list[StoreSubscription] = []  # guarded by _lock
        self._janitor = janitor(self._store, self._config.purge_policy(), self._config.janitor())
        self._listener: Service | None = None
        if isinstance(self._store, WakeSource):
            self._listener = listener(self._store, self._wake)
        self._poller: Poller | None = None
        if isinstance(self._store, Peeker):
            self._poller = Poller(self._store, self._pumps)

    # -- publish -------------------------------------------------------------------------------

    def publish(self, *messages: Message, connection: Any = None) -> None:
        """See `Publisher.publish`."""
        self._check_open()
        check_messages(
            messages,
            max_payload_bytes=self._config.max_payload_bytes,
            retention=self._config.retention(),
        )
        store = self._store
        if connection is None:
            fill_in(messages)
            self._start_janitor()
            if messages:
                _persistently(lambda: store.append(messages))
                self._wake_topics({message.topic for message in messages})
        elif isinstance(store, TransactionalStore):
            fill_in(messages)
            self._start_janitor()
            store.append_in(connection, messages)  # its subscribers are woken by the commit
        else:
            raise UnsupportedError("connection: this store cannot write in a caller's transaction")

    def _publish_unchecked(self, message: Message) -> None:
        _persistently(lambda: self._store.append([message]))
        self._wake(message.topic)

    # -- subscribe -----------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        group: str,
        handler: Handler,
        options: SubscribeOptions | None = None,
        **fields: Any,
    ) -> StoreSubscription:
        """See `Subscriber.subscribe`."""
        self._check_open(to_subscribe=True)
        options = _options(options, fields)
        validate_name("topic", topic)
        validate_name("group", group)
        if options.dead_letter_topic == topic:
            raise DeadLetterLoopError(
                f"dead_letter_topic {topic!r}: is the subscribed topic; each copy would fail again"
            )
        check_handler(handler)
        if isinstance(self._store, ConsumeChecker):
            self._store.can_consume()
        _persistently(lambda: self._store.ensure_group(topic, group, options.start_from))
        subscription = StoreSubscription(
            self._store, topic, group, handler, options, self._publish_unchecked
        )
        with self._lock:
            self._check_open(to_subscribe=True)
            self._subscriptions = [s for s in self._subscriptions if not s.ended]
            self._subscriptions.append(subscription)
            self._start_janitor()
            if self._listener is not None:
                self._listener.start()
            subscription.start()
            if self._poller is not None:
                self._poller.start()
                self._poller.joined()
        return subscription

    def subscriber(
        self, topic: str, group: str, options: SubscribeOptions | None = None, **fields: Any
    ) -> Callable[[H], H]:
        """Subscribe the decorated function, at once; it stays callable as it was.

        ::

            @queue.subscriber("orders", "billing", concurrency=8)
            def bill(delivery): ...

        Takes and raises what `subscribe` does. `close` of the queue ends the subscription.
        """

        def decorate(handler: H) -> H:
            self.subscribe(topic, group, handler, options, **fields)
            return handler

        return decorate

    # -- look ----------------------------------------------------------------------------------

    def stats(self, topic: str, group: str) -> Stats:
        """See `Queue.stats`."""
        self._check_asked(topic, group)
        return self._store.stats(topic, group)

    def group_stats(self, topic: str, group: str) -> GroupStats:
        """Count the deliveries of one group by what they wait for.

        Raises:
            UnsupportedError: the store cannot tell them apart.
        """
        self._check_asked(topic, group)
        if not isinstance(self._store, DetailedStats):
            raise UnsupportedError("group_stats: this store cannot tell deliveries apart")
        return self._store.group_stats(topic, group)

    def ping(self) -> None:
        """See `Queue.ping`."""
        self._check_open()
        self._store.ping()

    def health(self) -> Health:
        """See `Queue.health`."""
        self._check_open()
        with self._lock:
            subscriptions = tuple(s.health() for s in self._subscriptions if not s.ended)
            services = self._services()
        return Health(
            ok=all(s.running and s.error is None for s in subscriptions),
            subscriptions=subscriptions,
            errors=tuple(service.error for service in services if service.error),
        )

    # -- close ---------------------------------------------------------------------------------

    def close(self, timeout: float | timedelta | None = None) -> bool:
        """See `Queue.close`."""
        deadline = Deadline(timeout)
        with self._lock:
            self._closing = True
            subscriptions = list(self._subscriptions)
        # Side by side: all of them stop claiming before any is waited for. The handlers that are
        # waited for may go on publishing.
        for subscription in subscriptions:
            subscription.begin_close()
        services = self._services()
        for service in services:
            service.stop()
        ended = [subscription.drain(deadline) for subscription in subscriptions]
        with self._lock:
            self._closed = True
        if not self._close_store(subscriptions, services, Deadline(GRACE)):
            # Somebody still uses the store: a slow statement, or the handler that closes the
            # queue that runs it, whose outcome is written after it returned.
            threading.Thread(
                target=self._close_store,
                args=(subscriptions, services, Deadline(None)),
                name="queue-close",
                daemon=True,
            ).start()
        return all(ended)

    def _close_store(
        self, subscriptions: list[StoreSubscription], services: list[Service], bound: Deadline
    ) -> bool:
        """Close the store once no thread of ours uses it; say whether that was in time."""
        left = [subscription.join(bound) for subscription in subscriptions]
        left += [service.join(bound.left()) for service in services]
        if all(left):
            self._store.close()
            leave_forks(self)
        return all(left)

    def __enter__(self) -> Self:
        """Use the queue as a context manager: leaving it closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the queue and wait for its handlers."""
        self.close()

    # -- forks ---------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Called by `follow_forks`."""
        self._lock.acquire()  # no other thread may be half-way through a change
        if isinstance(self._store, ForkAware):
            self._store.before_fork()

    def after_fork(self, *, child: bool) -> None:
        """Called by `follow_forks`."""
        if isinstance(self._store, ForkAware):
            self._store.after_fork(child=child)
        if child:
            self._reset()  # the parent's threads, and so its subscriptions, are not here
        else:
            self._lock.release()

    # -- inside --------------------------------------------------------------------------------

    def _check_open(self, *, to_subscribe: bool = False) -> None:
        if self._closed or (to_subscribe and self._closing):
            raise QueueClosedError("the queue is closed")

    def _check_asked(self, topic: str, group: str) -> None:
        self._check_open()
        validate_name("topic", topic)
        validate_name("group", group)

    def _start_janitor(self) -> None:
        if not self._janitor.alive:
            with self._lock:
                self._check_open()
                self._janitor.start()

    def _services(self) -> list[Service]:
        every = self._janitor, self._listener, self._poller
        return [service for service in every if service is not None]

    def _pumps(self) -> list[Pump]:
        return [each.pump for each in tuple(self._subscriptions) if not each.ended]

    def _wake(self, topic: str) -> None:
        """Wake the subscriptions of a topic; of every topic if it is empty."""
        self._wake_topics({topic})

    def _wake_topics(self, topics: set[str]) -> None:
        for subscription in tuple(self._subscriptions):
            if subscription.topic in topics or "" in topics:
                subscription.wake()


def new_store_queue(store: Store, config: EngineConfig | None = None) -> StoreQueue:
    """Build a queue on a store of your own: the whole engine for twelve methods.

    Takes ownership of `store`: closing the queue closes it.
    """
    return StoreQueue(store, EngineConfig() if config is None else config)


def _options(options: SubscribeOptions | None, fields: dict[str, Any]) -> SubscribeOptions:
    if options is None:
        check_known(fields, {option.name for option in dataclasses.fields(SubscribeOptions)})
        return SubscribeOptions(**fields)
    if fields:
        raise InvalidOptionsError(
            f"options: pass a SubscribeOptions or keywords, not both ({', '.join(sorted(fields))})"
        )
    if not isinstance(options, SubscribeOptions):
        raise InvalidOptionsError(f"options {shown(options)}: must be a SubscribeOptions")
    return options


def _persistently(write: Callable[[], T]) -> T:
    """Call `write`; after a fault that may pass three times more, in 100, 200 and 400 ms.

    Not if that took long: then the store itself has waited for the fault to pass, as SQLite does
    for a lock, and a caller must not wait for several times that.
    """
    begun = time.monotonic()
    try:
        return write()  # the common case does not pay for the machinery
    except StoreUnavailableError:
        left = _PATIENCE - (time.monotonic() - begun)
        if left <= 0:
            raise
        time.sleep(0.1)
    again = Retrying(
        retry=retry_if_exception_type(StoreUnavailableError),
        stop=stop_after_attempt(3) | stop_after_delay(left),
        wait=wait_exponential(multiplier=0.2),
        reraise=True,
    )
    return again(write)
