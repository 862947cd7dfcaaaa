"""Typical use, for the type checker alone: nothing in here ever runs.

A line that must not type-check carries the `type: ignore` of exactly that error, and `--strict`
reports an ignore that is not needed: so each is an assertion, too.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, assert_type

import sqlalchemy as sa
from sqlalchemy.orm import Session

from queue_lib import (
    Cancellation,
    Claimed,
    ClaimRequest,
    Config,
    Delivery,
    Dependencies,
    DetailedStats,
    DistributedLocker,
    Factory,
    ForkAware,
    Handler,
    Health,
    LockHandle,
    Message,
    Permanent,
    ProcessLocker,
    Publisher,
    Queue,
    QueueType,
    StartFrom,
    Stats,
    Store,
    SubscribeOptions,
    Subscriber,
    Subscription,
    TransactionalStore,
    WakeSource,
    new_queue,
    new_store_queue,
    open_queue,
    register,
)
from queue_lib.engine.queue import StoreQueue
from queue_lib.stores.memory import MemoryStore
from queue_lib.stores.sql.store import SqlStore

# -- opening -----------------------------------------------------------------------------------


def opening(engine: sa.Engine, url: sa.URL) -> None:
    for target in ("sqlite:///app.db", url, engine):
        assert_type(open_queue(target, migrate=True, retention_hours=24), StoreQueue)
    open_queue(None)  # type: ignore[arg-type]
    assert_type(new_queue(Config.from_json("{}")), Queue | None)
    assert_type(new_queue(None, Dependencies(engine=engine, locker=ProcessLocker())), Queue | None)
    Config(enabled=True, type=QueueType.MEMORY)
    Dependencies(engine="sqlite:///app.db")  # type: ignore[arg-type]


def brokers() -> None:
    def make(config: Config, dependencies: Dependencies) -> StoreQueue:
        return new_store_queue(MemoryStore())

    factory: Factory = make
    register("broker", factory)
    register("broker", lambda config, dependencies: None)  # type: ignore[arg-type,return-value]


# -- publishing --------------------------------------------------------------------------------


def publishing(queue: Publisher, connection: sa.Connection, session: Session) -> None:
    message = Message("orders", b"...", key="42", headers={"trace": "1"}, priority=-1)
    queue.publish(message)
    queue.publish(message, message, connection=connection)
    queue.publish(message, connection=session)
    queue.publish([message])  # type: ignore[arg-type]
    queue.publish("orders")  # type: ignore[arg-type]
    Message("orders", "text")  # type: ignore[arg-type]
    Message("orders", headers={"attempt": 1})  # type: ignore[dict-item]


# -- handling ----------------------------------------------------------------------------------


def nothing(delivery: Delivery) -> None:
    assert_type(delivery.payload, bytes)
    assert_type(delivery.headers, dict[str, str] | None)
    assert_type(delivery.cancelled, Cancellation)
    assert_type(delivery.cancelled.wait(timeout=0.5), bool)
    assert_type(delivery.cancel_reason, str | None)
    raise Permanent(ValueError("why")) from None


def number(delivery: Delivery) -> int:
    return delivery.attempt


def any_message(message: Message) -> None:
    """Wants less than it gets."""


def two(tenant: str, delivery: Delivery) -> None:
    """For `functools.partial`."""


class Service:
    def handle(self, delivery: Delivery) -> None: ...
    def __call__(self, delivery: Delivery) -> None: ...


handlers: list[Handler] = [
    nothing, number, any_message, functools.partial(two, "tenant"), Service().handle, Service(),
    lambda delivery: delivery.payload.decode(),
]  # fmt: skip


def subscribing(queue: Subscriber) -> None:
    for handler in handlers:
        assert_type(queue.subscribe("orders", "billing", handler, concurrency=8), Subscription)
    options = SubscribeOptions(
        concurrency=8,
        lease_duration=timedelta(seconds=30),
        dead_letter_topic="orders.dead",
        start_from=StartFrom.EARLIEST,
    )
    subscription = queue.subscribe("orders", "billing", nothing, options)
    assert_type(subscription.close(timeout=10), bool)
    assert_type(subscription.close(timedelta(seconds=10)), bool)
    queue.subscribe("orders", "billing")  # type: ignore[call-arg]
    queue.subscribe("orders", "billing", two)  # type: ignore[arg-type]
    queue.subscribe("orders", "billing", nothing, {"concurrency": 8})  # type: ignore[arg-type]
    options.concurrency = 9  # type: ignore[misc]


def decorating(queue: Queue, store_queue: StoreQueue) -> None:
    @queue.subscriber("orders", "billing", concurrency=8)
    def bill(delivery: Delivery) -> int:
        return delivery.attempt

    @store_queue.subscriber("orders", "shipping", SubscribeOptions())
    def ship(delivery: Message) -> str:
        return delivery.topic

    assert_type(bill(Delivery("orders")), int)
    assert_type(ship(Message("orders")), str)
    bill("orders")  # type: ignore[arg-type]

    @queue.subscriber("orders", "billing")  # type: ignore[type-var]
    def wrong(delivery: Delivery, tenant: str) -> None: ...


# -- looking after it --------------------------------------------------------------------------


def operating(queue: Queue) -> None:
    assert_type(queue.stats("orders", "billing"), Stats)
    assert_type(queue.health(), Health)
    assert_type([one.since_claim for one in queue.health().subscriptions], list[timedelta | None])
    assert_type(queue.close(timeout=10), bool)
    queue.ping()
    with queue as same:
        assert_type(same, Queue)
    with open_queue("memory://") as opened:
        assert_type(opened, StoreQueue)


# -- who implements what -----------------------------------------------------------------------


def implementations(memory: MemoryStore, sql: SqlStore, queue: StoreQueue) -> None:
    list[Store]([memory, sql])
    list[DetailedStats]([memory, sql])
    list[ForkAware]([memory, sql])
    list[TransactionalStore]([sql])
    list[WakeSource]([sql])
    list[Queue]([queue, new_store_queue(memory)])
    list[Publisher | Subscriber]([queue])
    list[DistributedLocker]([ProcessLocker()])
    list[LockHandle]([ProcessLocker().acquire("orders", timedelta(seconds=1))])
    list[TransactionalStore]([memory])  # type: ignore[list-item]
    list[Store]([queue])  # type: ignore[list-item]


class OwnStore:
    """A store of somebody else: twelve methods, and the engine is theirs."""

    def ensure_group(self, topic: str, group: str, start_from: StartFrom) -> None: ...
    def append(self, messages: Any) -> None: ...
    def claim(self, request: ClaimRequest) -> list[Claimed]:
        return []

    def ack(self, claims: Any) -> list[str]:
        return []

    def retry(self, claim: Claimed, backoff: timedelta, last_error: str) -> bool:
        return False

    def kill(self, claim: Claimed, last_error: str) -> bool:
        return False

    def extend(self, claims: Any, lease: timedelta) -> list[str]:
        return []

    def release(self, claims: Any) -> None: ...
    def purge(self, policy: Any, batch: int) -> int:
        return 0

    def stats(self, topic: str, group: str) -> Stats:
        return Stats()

    def ping(self) -> None: ...
    def close(self) -> None: ...


class OwnWakingStore(OwnStore):
    def listen(self, wake: Callable[[str], None], stop: threading.Event) -> None: ...


def own_stores(store: OwnStore, waking: OwnWakingStore) -> None:
    assert_type(new_store_queue(store), StoreQueue)
    new_store_queue(waking)
    list[WakeSource]([waking])
    list[WakeSource]([store])  # type: ignore[list-item]
