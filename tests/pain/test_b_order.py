"""B. Order, keys, fairness, limits."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from queue_lib import Message, StartFrom, Stats, open_queue
from queue_lib.engine.queue import StoreQueue
from tests.engine.conftest import OpenQueue
from tests.engine.harness import (
    FAST,
    GROUP,
    TOPIC,
    Backend,
    Diary,
    Gate,
    Inbox,
    eventually,
    in_thread,
    messages,
)
from tests.pain import child


@pytest.fixture
def host(postgres_migrated_url: str) -> Iterator[sa.Engine]:
    """An application's engine on PostgreSQL, where several may write at once."""
    engine = sa.create_engine(postgres_migrated_url)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("key", ["", "k"], ids=["unkeyed", "keyed"])
def test_what_is_committed_late_is_delivered_all_the_same(host: sa.Engine, key: str) -> None:
    """P25. Its number is lower than that of what was published, seen and done meanwhile."""
    inbox = Inbox()
    with open_queue(host) as queue:
        queue.subscribe(TOPIC, GROUP, inbox, **FAST)
        with host.connect() as slow:
            queue.publish(Message(TOPIC, id="late", key=key), connection=slow)
            queue.publish(Message(TOPIC, id="early", key=key and "another"))
            inbox.wait()
            eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
            slow.commit()
        inbox.wait(2)
        eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    assert inbox.ids == ["early", "late"]


def test_a_key_runs_in_the_order_of_its_commits(host: sa.Engine) -> None:
    """P25. The second publisher of a key waits for the first; so does a late group's backfill."""
    inbox, late = Inbox(), Inbox()
    with open_queue(host) as queue:
        queue.subscribe(TOPIC, GROUP, inbox, **FAST)
        with host.connect() as slow:
            queue.publish(Message(TOPIC, id="first", key="k"), connection=slow)
            options = {**FAST, "start_from": StartFrom.EARLIEST}
            with (
                in_thread(lambda: queue.publish(Message(TOPIC, id="second", key="k"))),
                in_thread(lambda: queue.subscribe(TOPIC, "late", late, **options)),
            ):
                eventually(lambda: _waiting(host) == 2)
                slow.commit()
        for each in (inbox, late):
            each.wait(2)
    assert inbox.ids == late.ids == ["first", "second"]


def _waiting(host: sa.Engine) -> int:
    """Count the connections to the database that wait for somebody's transaction."""
    query = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
    )
    with host.connect() as connection:
        return int(connection.exec_driver_sql(query).scalar_one())


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.requires("shared")
def test_the_places_of_a_killed_process_are_free_when_its_leases_end(
    backend: Backend, queue: StoreQueue
) -> None:
    """P28. They are counted from leases, so nobody has to give them back."""
    queue.subscribe(TOPIC, GROUP, Inbox()).close()
    queue.publish(*messages(6))
    with child.start("hold_under_a_cap", backend) as holder:
        assert holder.stdout is not None
        held = {holder.stdout.readline().strip() for _ in range(2)}
        assert queue.stats(TOPIC, GROUP) == Stats(pending=4, leased=2)
        holder.kill()
    killed = time.monotonic()
    with Gate() as gate:
        queue.subscribe(TOPIC, GROUP, gate, **FAST, max_in_flight=2)
        gate.wait(2)
        assert gate.times[-1] - killed < backend.lease + backend.hold_up + 1.5
        gate.open()
        gate.wait(6)
        eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    assert gate.peak == 2
    assert {delivery.id for delivery in gate.deliveries if delivery.attempt == 2} == held


@pytest.mark.slow
def test_whoever_the_cap_keeps_out_asks_no_more_often_than_it_polls(
    backend: Backend, open_queue: OpenQueue
) -> None:
    """P29. There is work, it is due, and it may not be taken: that is no reason to spin."""
    diary = Diary(backend.open())
    holder, kept_out = open_queue(), open_queue(diary)
    with Gate() as gate:
        holder.subscribe(TOPIC, GROUP, gate, **FAST, max_in_flight=1)
        soon = datetime.now(UTC) + timedelta(seconds=0.05)  # a time that is known, and passes
        holder.publish(
            *messages(1),
            *messages(3, start=1, key="k"),
            *messages(2, start=4, deliver_at=soon),
        )
        gate.wait()
        kept_out.subscribe(TOPIC, GROUP, gate, poll_interval=0.1, max_in_flight=1)
        claims = diary.wait("claim", 20)[4:]
        pauses = [after.began - before.ended for before, after in itertools.pairwise(claims)]
        # A listener that comes up, and a wake-up on its way, each ask for a claim besides.
        assert sum(pause < 0.08 - 0.005 for pause in pauses) <= 2
        gate.open()
        gate.wait(6)
    assert gate.peak == 1


def test_a_key_that_floods_the_topic_holds_up_nobody_else(queue: StoreQueue) -> None:
    """P23, P30. Of a thousand of one key only the first takes part: the others come at once."""
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, Inbox()).close()
    queue.publish(*messages(1000, key="tenant a"))
    queue.publish(*(Message(TOPIC, key=f"tenant {n}", id=f"small-{n}") for n in range(10)))
    with Gate() as gate:
        queue.subscribe(
            TOPIC, GROUP, lambda d: gate(d) if d.key == "tenant a" else inbox(d), **FAST
        )
        inbox.wait(10)
        assert gate.ids == ["orders-0"]
        assert queue.close(timeout=0) is False  # the flood stays where it is
