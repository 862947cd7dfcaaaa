"""A. Leases, heartbeats, crash recovery, acknowledgement."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from queue_lib import (
    Claimed,
    ClaimRequest,
    Delivery,
    EngineConfig,
    ProcessLocker,
    StartFrom,
    Stats,
    Store,
    WakeSource,
    migrate,
)
from queue_lib.durations import MAX_DURATION
from queue_lib.engine.queue import StoreQueue
from queue_lib.registry import open_database_store
from queue_lib.stores.memory import MemoryStore
from queue_lib.stores.sql.open import open_sql_store
from queue_lib.testing.conformance.case import together
from queue_lib.testing.faults import FaultyStore, PausingStore
from tests.clickhouse_server import ClickHouseServer
from tests.engine.conftest import OpenQueue
from tests.engine.harness import (
    DEADLINE,
    FAST,
    GROUP,
    MINUTE,
    TOPIC,
    Backend,
    Gate,
    Inbox,
    eventually,
    messages,
)
from tests.pain import child
from tests.pain.conftest import OwnQueue
from tests.servers import PostgresServer

TINY = 1e-9
"""Hours of a retention that is over at once."""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.requires("shared")
def test_who_kept_the_interpreter_for_too_long_has_lost_the_lease_and_is_told(
    backend: Backend, queue: StoreQueue
) -> None:
    """P02. No thread of that process could renew it; its late outcome changes nothing."""
    queue.subscribe(TOPIC, GROUP, Inbox()).close()
    queue.publish(*messages(1))
    with child.start("keep_the_interpreter", backend) as stuck, Gate() as gate:
        assert stuck.stdout is not None
        assert stuck.stdout.readline() == "run 1\n"
        queue.subscribe(TOPIC, GROUP, gate, **FAST)
        gate.wait()
        output, errors = stuck.communicate("\n", timeout=DEADLINE)
        assert output == "late True, lease lost\n", errors
        assert queue.stats(TOPIC, GROUP) == Stats(leased=1)  # ours
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    assert gate.attempts == [2]


@pytest.mark.slow
def test_the_age_of_a_run_is_no_reason_to_run_it_again(
    backend: Backend, open_queue: OpenQueue
) -> None:
    """P04. Neither a janitor nor another consumer takes a run for dead that is renewed."""
    config = EngineConfig(janitor_interval=0.05, retention_hours=TINY, acked_retention_hours=TINY)
    lease = 2 * backend.lease
    queues = [open_queue(config=config) for _ in range(2)]
    inbox = Inbox(then=lambda delivery: delivery.cancelled.wait(3 * lease))
    for queue in queues:
        queue.subscribe(TOPIC, GROUP, inbox, **FAST, lease_duration=lease)
    queues[0].publish(*messages(1))
    (delivery,) = inbox.wait()
    eventually(lambda: queues[0].stats(TOPIC, GROUP) == Stats())
    assert inbox.attempts == [1]
    assert delivery.cancel_reason is None


def test_a_close_spends_no_attempt_not_even_of_the_last_one(
    queue: StoreQueue, open_queue: OpenQueue
) -> None:
    """P06. A deploy interrupts the only attempt: it is run again, not dead."""
    options: dict[str, Any] = {**MINUTE, "max_attempts": 1, "dead_letter_topic": "dead"}
    elsewhere = Inbox()
    with Gate() as gate:
        subscription = queue.subscribe(TOPIC, GROUP, gate, **options)
        queue.publish(*messages(1))
        gate.wait()
        assert subscription.close(timeout=0.05) is False
        open_queue().subscribe(TOPIC, GROUP, elsewhere, **options)
        elsewhere.wait()
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    assert elsewhere.attempts == [1]


@pytest.mark.slow
def test_an_acknowledgement_that_stays_impossible_is_given_up_aloud(
    own_queue: OwnQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """P10. The work was done, and nobody can say so: that is visible, and it ends."""
    store = FaultyStore(MemoryStore())
    queue = own_queue(store)
    inbox = Inbox()
    store.fail_on("ack", times=None)
    queue.subscribe(TOPIC, GROUP, inbox, **FAST, lease_duration=0.3, concurrency=1)
    queue.publish(*messages(1))
    eventually(lambda: (queue.health().subscriptions[0].error or "").startswith("ack: "))
    eventually(lambda: "gave up acknowledging 1 deliveries" in caplog.text)
    store.heal()
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    eventually(lambda: queue.health().ok)
    assert inbox.attempts == list(range(1, len(inbox.attempts) + 1))


# -- the database goes away ------------------------------------------------------------------


@dataclass(frozen=True)
class Crashable:
    """A database on a server that can be crashed and started again."""

    server: PostgresServer | ClickHouseServer
    url: str

    def open(self) -> Store:
        locker = ProcessLocker() if "clickhouse" in self.url else None
        return open_database_store(sa.make_url(self.url), locker=locker)


@pytest.fixture(params=["postgres", "clickhouse"])
def crashable(request: pytest.FixtureRequest) -> Crashable:
    server: PostgresServer | ClickHouseServer = request.getfixturevalue(
        f"crashable_{request.param}"
    )
    url = server.url(server.create_database())
    migrate.upgrade(url)
    return Crashable(server, url)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("method", ["claim", "extend", "ack", "purge", "listen"])
def test_a_server_that_crashes_under_any_operation_stops_nothing_for_good(
    crashable: Crashable, own_queue: OwnQueue, method: str
) -> None:
    """P13. Every thread goes on by itself, and every message has one end."""
    store = PausingStore(crashable.open())
    if method == "listen" and not isinstance(store, WakeSource):
        pytest.skip("nothing listens")
    queue = own_queue(store, EngineConfig(janitor_interval=0.01) if method == "purge" else None)

    def handle(delivery: Delivery) -> None:
        if method == "extend" and delivery.attempt == 1:
            crashed.wait(DEADLINE)

    inbox, crashed = Inbox(then=handle), threading.Event()
    with store.pause_on(method) as pause:
        queue.subscribe(TOPIC, GROUP, inbox, **FAST, lease_duration=2)
        queue.publish(*messages(5), *messages(5, start=5, key="k"))
        pause.wait_reached()
        crashable.server.kill()
        pause.resume()
        crashable.server.start()
        crashed.set()
    queue.publish(*messages(1, start=10))
    inbox.wait(11)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    eventually(lambda: queue.health().ok and queue.health().errors == ())
    assert all(subscription.running for subscription in queue.health().subscriptions)
    runs = Counter(inbox.ids)
    last = {delivery.id: delivery.attempt for delivery in inbox.deliveries}
    assert runs == Counter(last)  # none but those that lost a lease ran again
    assert len(last) == 11


# -- claims ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [{}, {"connect_args": {"isolation_level": None}}, {"isolation_level": "AUTOCOMMIT"}],
    ids=["default", "isolation_level=None", "AUTOCOMMIT"],
)
def test_no_setting_of_a_host_s_engine_lets_two_claim_one_delivery(
    sqlite_migrated_url: str, arguments: dict[str, Any]
) -> None:
    """P14. Its transactions may begin late, or never; ours begin with the write lock."""
    engines = [sa.create_engine(sqlite_migrated_url, **arguments) for _ in range(2)]
    stores = [open_sql_store(engine) for engine in engines]
    stores[0].ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    batch = messages(400)
    for message in batch:
        message.published_at = datetime.now(UTC)
    stores[0].append(batch)

    def claim_all(number: int) -> list[Claimed]:
        mine: list[Claimed] = []
        request = ClaimRequest(TOPIC, GROUP, f"runner {number}", 5, timedelta(minutes=1))
        while claims := stores[number % 2].claim(request):
            mine += claims
        return mine

    claims = [claim for mine in together(8, claim_all) for claim in mine]
    assert sorted(claim.message.id for claim in claims) == sorted(m.id for m in batch)
    assert len({claim.claim_token for claim in claims}) == len(batch)
    for store in stores:
        store.close()
    for engine in engines:
        engine.dispose()


# -- failures ----------------------------------------------------------------------------------


def test_the_longest_backoff_is_written_like_any_other(queue: StoreQueue) -> None:
    """P17. It overflows nowhere, and the message is neither lost nor due at once."""

    def fail(_: Delivery) -> None:
        raise ValueError

    inbox = Inbox(then=fail)
    queue.subscribe(
        TOPIC, GROUP, inbox, poll_interval=0.02,
        max_attempts=2000, backoff_base=MAX_DURATION, backoff_max=MAX_DURATION,
    )  # fmt: skip
    queue.publish(*messages(1))
    eventually(lambda: queue.group_stats(TOPIC, GROUP).retrying == 1)
    assert inbox.attempts == [1]


def test_a_handler_that_never_returns_takes_one_slot_and_can_be_found(
    queue: StoreQueue,
) -> None:
    """P19. What it holds is counted, its key waits, the others go on, its thread has a name."""
    others = Inbox()

    def handle(delivery: Delivery) -> object:
        return gate(delivery) if delivery.key else others(delivery)

    with Gate() as gate:
        queue.subscribe(TOPIC, GROUP, handle, **FAST, concurrency=2)
        queue.publish(*messages(2, key="stuck"), *messages(20, start=2))
        others.wait(20)
        eventually(lambda: queue.health().subscriptions[0].held == 1)
        stats = queue.group_stats(TOPIC, GROUP)
        assert (stats.leased, stats.behind_key, stats.ready) == (1, 1, 0)
        names = [thread.name for thread in threading.enumerate()]
        assert any(name.startswith(f"queue-handler:{TOPIC}:{GROUP}") for name in names)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
