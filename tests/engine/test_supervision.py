"""Threads that fail: logged, restarted, visible. And the janitor, which nothing may stop."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import pytest

from queue_lib import Delivery, EngineConfig, PurgePolicy, Stats, StoreError, WakeSource
from queue_lib.engine import upkeep
from queue_lib.engine.heartbeat import Heartbeat
from queue_lib.engine.lifecycle import Service
from queue_lib.engine.plan import Plan
from queue_lib.engine.pump import Pump
from queue_lib.engine.queue import StoreQueue
from queue_lib.engine.upkeep import PURGE_BATCH, janitor
from queue_lib.stores.memory import MemoryStore
from queue_lib.testing.conformance.case import together
from queue_lib.testing.faults import FaultyStore
from tests.engine.conftest import OpenQueue
from tests.engine.harness import (
    DEADLINE,
    FAST,
    GROUP,
    TOPIC,
    Backend,
    Gate,
    Inbox,
    eventually,
    messages,
)


class OddError(BaseException):
    """Nothing that anybody expects."""


@pytest.mark.slow
@pytest.mark.parametrize("error", [OddError("odd"), SystemExit(3)], ids=["odd", "exit"])
@pytest.mark.parametrize("method", ["claim", "ack", "extend", "purge", "listen"])
def test_a_thread_that_dies_is_reported_and_started_again(
    backend: Backend,
    open_queue: OpenQueue,
    caplog: pytest.LogCaptureFixture,
    method: str,
    error: BaseException,
) -> None:
    store = FaultyStore(backend.open())
    queue = open_queue(store, EngineConfig(janitor_interval=0.01))
    if method == "listen" and not isinstance(store, WakeSource):
        pytest.skip("nothing listens")
    with caplog.at_level(logging.ERROR, "queue_lib"), Gate() as gate:
        store.fail_on(method, error)
        queue.subscribe(TOPIC, GROUP, gate, **FAST, lease_duration=backend.lease, concurrency=2)
        queue.publish(*messages(1))
        gate.wait()
        eventually(lambda: method == "ack" or store.raised[method])
        gate.open()
        queue.publish(*messages(3, start=1))
        eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
        eventually(lambda: queue.health().ok)
    raised = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert raised == [type(error)]
    assert gate.attempts == [1] * 4  # nothing was forgotten meanwhile


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "method"), [(Plan, "claimed"), (Pump, "_acknowledge"), (Heartbeat, "_renew")]
)
def test_a_bug_in_a_thread_is_reported_and_healed_when_it_goes_away(
    backend: Backend,
    queue: StoreQueue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    part: type,
    method: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        failed.release()
        raise RuntimeError("a bug")

    failed = threading.Semaphore(0)
    with caplog.at_level(logging.ERROR, "queue_lib"), monkeypatch.context() as patch:
        patch.setattr(part, method, fail)
        queue.subscribe(TOPIC, GROUP, Inbox(), **FAST, lease_duration=backend.lease)
        assert failed.acquire(timeout=DEADLINE)
        eventually(lambda: not queue.health().ok)
        assert queue.health().subscriptions[0].error == "RuntimeError: a bug"
    queue.publish(*messages(5))
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    eventually(lambda: queue.health().ok)
    assert "Traceback" in caplog.text


def test_health_tells_how_the_threads_are_doing(backend: Backend, open_queue: OpenQueue) -> None:
    queue = open_queue()
    assert queue.health().ok
    assert queue.health().subscriptions == ()
    with Gate() as gate:
        queue.subscribe(TOPIC, GROUP, gate, **FAST, lease_duration=backend.lease)
        eventually(lambda: queue.health().subscriptions[0].since_claim is not None)
        (health,) = queue.health().subscriptions
        assert (health.topic, health.group, health.held) == (TOPIC, GROUP, 0)
        assert health.running
        assert health.error is None
        assert health.since_heartbeat is None
        queue.publish(*messages(3))
        gate.wait(3)
        assert queue.health().subscriptions[0].held == 3
        eventually(lambda: queue.health().subscriptions[0].since_heartbeat is not None)
        (health,) = queue.health().subscriptions
        assert timedelta(0) <= (health.since_heartbeat or timedelta.max) < timedelta(seconds=5)
        assert timedelta(0) <= (health.since_claim or timedelta.max) < timedelta(seconds=5)


@pytest.mark.slow
def test_consuming_goes_on_when_the_system_has_no_threads_to_give(
    queue: StoreQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    refused = threading.Event()

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("queue-handler"):
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    inbox = Inbox()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        queue.subscribe(TOPIC, GROUP, inbox, **FAST)
        queue.publish(*messages(3))
        assert refused.wait(DEADLINE)
        eventually(lambda: not queue.health().ok)
    inbox.wait(3)
    eventually(lambda: queue.health().ok)


# -- the janitor -----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_janitor_purges_under_load_and_survives_its_faults(
    backend: Backend, open_queue: OpenQueue
) -> None:
    store = FaultyStore(backend.open())
    tiny = 1e-9  # hours: 3.6 µs
    config = EngineConfig(janitor_interval=0.01, retention_hours=tiny, acked_retention_hours=tiny)
    queue = open_queue(store, config)

    def handle(delivery: Delivery) -> None:
        if delivery.priority:
            raise ValueError

    inbox = Inbox(then=handle)
    store.fail_on("purge", StoreError("broken"), times=2)
    store.fail_on("purge", RuntimeError("a bug"), times=2)
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, max_attempts=1, concurrency=4)

    def publish(number: int) -> None:
        for start in range(1000 * number, 1000 * number + 100, 10):
            queue.publish(*messages(10, start=start))

    together(4, publish)
    queue.publish(*messages(5, start=9000, priority=1))
    inbox.wait(405)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())  # the dead are forgotten, too
    assert len(set(inbox.ids)) == len(inbox.ids) == 405
    assert store.raised["purge"] == 4
    (again,) = messages(1)

    def is_forgotten() -> bool:
        queue.publish(again)  # stored only if no message of that id is there any more
        return len(inbox.ids) > 405

    eventually(is_forgotten)
    eventually(lambda: queue.health().errors == ())


def test_a_pass_of_the_janitor_repeats_while_whole_batches_go() -> None:
    gone = iter([PURGE_BATCH, 2 * PURGE_BATCH, PURGE_BATCH - 1])
    last = threading.Event()

    class Full(MemoryStore):
        def purge(self, policy: PurgePolicy, batch: int) -> int:
            assert batch == PURGE_BATCH  # they take no time here
            count = next(gone, 0)
            if count < PURGE_BATCH:
                last.set()
            return count

    policy = PurgePolicy(timedelta(hours=1), timedelta(hours=1))
    # The first pass comes within one interval, the second would come after most of another.
    service = janitor(Full(), policy, timedelta(milliseconds=200))
    service.start()
    assert last.wait(DEADLINE)
    service.stop()
    assert service.join(DEADLINE)
    assert list(gone) == []


def test_a_purge_that_takes_long_becomes_smaller_and_leaves_as_much_time_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow(MemoryStore):
        now = 0.0
        batches: ClassVar[list[int]] = []

        def purge(self, policy: PurgePolicy, batch: int) -> int:
            self.batches.append(batch)
            self.now += 0.00004 * batch
            return batch if len(self.batches) < 5 else 0

    class Told(threading.Event):
        waits: ClassVar[list[float]] = []

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            self.waits.append(timeout)
            return len(store.batches) == 5

    store = Slow()
    monkeypatch.setattr(upkeep, "time", SimpleNamespace(monotonic=lambda: store.now))
    hour = timedelta(hours=1)
    janitor(store, PurgePolicy(hour, hour), hour)._body(Told())
    assert store.batches == [1000, 125, 125, 125, 125]
    assert Told.waits[1:5] == pytest.approx([0.04, 0.005, 0.005, 0.005])


# -- services --------------------------------------------------------------------------------


def _call(sides: list[Callable[[], None]], number: int) -> None:
    sides[number]()


def test_a_service_is_started_at_most_once_whoever_starts_and_stops_it() -> None:
    for _ in range(30):
        starts: list[int] = []

        def body(stop: threading.Event, starts: list[int] = starts) -> None:
            starts.append(1)
            stop.wait()

        service = Service("queue-service", body)
        sides = [service.start, service.stop] * 2
        together(4, partial(_call, sides))
        service.start()
        service.stop()
        assert service.join(DEADLINE)
        assert not service.alive
        assert len(starts) <= 1


def test_a_service_starts_again_after_longer_and_longer_pauses() -> None:
    runs: list[float] = []

    def body(_: threading.Event) -> None:
        runs.append(time.monotonic())
        if len(runs) < 5:
            raise ValueError("not yet")

    service = Service("queue-service", body, pause=0.01, longest_pause=0.04)
    service.start()
    assert service.join(DEADLINE)
    pauses = [after - before for before, after in itertools.pairwise(runs)]
    for pause, least in zip(pauses, [0.01, 0.02, 0.04, 0.04], strict=True):
        assert pause >= least
    assert service.error == "ValueError: not yet"
    service.succeeded()
    assert service.error is None
