"""Behind a PgBouncer in transaction mode: no statement counts on the connection of the last one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta

import pytest
import sqlalchemy as sa

from queue_lib import Message, Stats, StoreUnavailableError, open_queue
from queue_lib.lockers.sql import SQLLocker
from queue_lib.testing.conformance.case import together
from tests.pgbouncer import PgBouncer
from tests.postgres.lab import DEADLINE, GROUP, TOPIC, Lab, eventually, ids, message
from tests.servers import Postgres, ServerUnavailableError

PATIENCE = timedelta(seconds=DEADLINE)


@pytest.fixture(scope="module")
def bouncer(postgres_server: Postgres) -> Iterator[PgBouncer]:
    try:
        bouncer = PgBouncer(sa.make_url(postgres_server.url("postgres")))
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    with bouncer:
        yield bouncer


@pytest.fixture
def through(bouncer: PgBouncer, postgres_migrated_url: str) -> sa.URL:
    """The URL of a new database with the tables, through the pooler."""
    return bouncer.url(sa.make_url(postgres_migrated_url))


def test_every_operation_works(bouncer: PgBouncer, lab: Lab) -> None:
    store = lab.store(bouncer.url(lab.host.url))
    lab.do_everything(store)
    for number in range(8):  # a driver that prepares does so at the fifth
        store.append([message(f"m{number}", "k")])
        assert ids(claims := lab.claim(store)) == [f"m{number}"]
        assert len(store.ack(claims)) == 1


def test_migrations_run_through_it(bouncer: PgBouncer, postgres_url: str) -> None:
    with open_queue(bouncer.url(sa.make_url(postgres_url)), migrate=True) as queue:
        queue.ping()


def test_many_consumers_share_few_connections(through: sa.URL) -> None:
    count, instances = 300, 4
    seen: list[str] = []  # appending is atomic
    with ExitStack() as stack:
        queues = [stack.enter_context(open_queue(through, wake=False)) for _ in range(instances)]
        for queue in queues:
            queue.subscribe(
                TOPIC, GROUP, lambda delivery: seen.append(delivery.id),
                concurrency=4, poll_interval=0.05, lease_duration=5,
            )  # fmt: skip

        def publish(number: int) -> None:
            for index in range(count // instances):
                name = f"{number}-{index}"
                queues[number].publish(Message(TOPIC, b"", key=f"k{index % 7}", id=name))

        together(instances, publish)
        eventually(lambda: queues[0].stats(TOPIC, GROUP) == Stats())
    assert sorted(seen) == sorted(set(seen))
    assert len(seen) == count


def test_wake_ups_go_past_it(through: sa.URL, postgres_migrated_url: str) -> None:
    arrived = threading.Event()
    with (
        open_queue(through, listen_url=postgres_migrated_url) as consumer,
        open_queue(through) as publisher,
    ):
        consumer.subscribe(TOPIC, GROUP, lambda _: arrived.set(), poll_interval=600)
        eventually(lambda: consumer.health().subscriptions[0].since_claim is not None)
        publisher.publish(Message(TOPIC))
        assert arrived.wait(DEADLINE)


def test_a_caller_s_transaction_goes_through_it(through: sa.URL) -> None:
    engine = sa.create_engine(through, connect_args={"prepare_threshold": None})
    with open_queue(engine, wake=False) as queue:
        queue.subscribe(TOPIC, GROUP, print).close()
        with engine.connect() as connection:
            queue.publish(Message(TOPIC, id="a"), connection=connection)
            assert queue.stats(TOPIC, GROUP) == Stats()
            connection.commit()
        assert queue.stats(TOPIC, GROUP) == Stats(pending=1)
    engine.dispose()


def test_locks_hold_and_pass_on(through: sa.URL) -> None:
    """A lock is a row, not a session: it is renewed through whichever connection is free."""
    ttl = timedelta(seconds=1)
    inside, most, fences = 0, 0, list[int]()

    def work(_: int) -> None:
        nonlocal inside, most
        with SQLLocker(through, ttl=ttl) as locker:
            for _ in range(5):
                lock = locker.acquire("key", PATIENCE)
                inside += 1
                most = max(most, inside)
                fences.append(lock.fence)
                inside -= 1
                lock.release()

    together(8, work)
    assert most == 1
    assert fences == sorted(set(fences))
    assert len(fences) == 40


def test_a_lock_outlives_its_first_lease(through: sa.URL) -> None:
    with SQLLocker(through, ttl=0.3) as mine, SQLLocker(through, ttl=0.3) as theirs:
        lock = mine.acquire("key", PATIENCE)
        for _ in range(3):  # each waits for longer than a lease
            with pytest.raises(StoreUnavailableError):
                theirs.acquire("key", timedelta(seconds=0.4))
        assert not lock.lost.is_set()
        lock.release()
        theirs.acquire("key", PATIENCE).release()
