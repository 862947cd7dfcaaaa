"""The purge against publishers, late groups and other janitors, one step at a time."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
import sqlalchemy as sa

from queue_lib.stores.base import PurgePolicy
from queue_lib.stores.sql.dialect import Borrowed
from queue_lib.stores.sql.store import SqlStore
from queue_lib.testing.clock import ManualClock
from tests.postgres.lab import DEADLINE, GROUP, TOPIC, Lab, ids, message

HOUR = timedelta(hours=1)
HOURLY = PurgePolicy(dead_retention=HOUR, acked_retention=HOUR)
IN_MICROSECONDS = 3_600_000_000

READY = 0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(lab: Lab, clock: ManualClock) -> SqlStore:
    """A store with one message that no delivery needs and that is old enough to go."""
    store = lab.store(clock=clock)
    store.append([message("a")])
    clock.advance(2 * HOUR)
    return store


def purge_in(lab: Lab, connection: sa.Connection, clock: ManualClock) -> int:
    return lab.sql.purge_messages(
        Borrowed(connection), IN_MICROSECONDS, IN_MICROSECONDS, 100, clock()
    )


def test_a_publish_of_an_id_that_is_being_purged_stores_a_new_message(
    lab: Lab, store: SqlStore, clock: ManualClock
) -> None:
    lab.register(store)
    with lab.transaction() as purge:
        assert purge_in(lab, purge, clock) == 1
        publisher = lab.start_behind(purge, lambda: store.append([message("a", payload=b"new")]))
        purge.commit()
    publisher.result(DEADLINE)
    assert [claim.message.payload for claim in lab.claim(store)] == [b"new"]


def test_a_purge_that_rolls_back_leaves_the_id_taken(
    lab: Lab, store: SqlStore, clock: ManualClock
) -> None:
    lab.register(store)
    with lab.transaction() as purge:
        assert purge_in(lab, purge, clock) == 1
        publisher = lab.start_behind(purge, lambda: store.append([message("a", payload=b"new")]))
        purge.rollback()
    publisher.result(DEADLINE)
    assert lab.claim(store) == []


def test_a_purge_beside_an_open_publish_of_the_same_id(lab: Lab, store: SqlStore) -> None:
    """The publish came first and found the id taken: nothing was stored, and nothing is kept."""
    lab.register(store)
    with lab.transaction() as publisher:
        store.append_in(publisher, [message("a"), message("b")])
        assert store.purge(HOURLY, 100) == 1
        publisher.commit()
    assert ids(lab.claim(store)) == ["b"]


def test_a_backfill_in_flight_keeps_its_messages(
    lab: Lab, store: SqlStore, clock: ManualClock
) -> None:
    """The purge cannot see its deliveries yet: it leaves the topic alone, and does not wait."""
    with lab.transaction() as registrar:
        lab.sql.ensure_group(Borrowed(registrar), TOPIC, GROUP, True, clock())
        assert store.purge(HOURLY, 100) == 0
        registrar.commit()
    assert store.purge(HOURLY, 100) == 0
    assert lab.states() == {"a": READY}


def test_a_backfill_that_commits_in_the_middle_of_a_purge_keeps_its_messages(
    lab: Lab, store: SqlStore, clock: ManualClock
) -> None:
    """The purge has chosen the message before the commit, and locks the topic behind it.

    The lock on the table holds the purge between these two statements.
    """
    with lab.transaction() as registrar:
        registrar.exec_driver_sql(lab.tables.qualify("LOCK TABLE {q}topics"))
        lab.sql.ensure_group(Borrowed(registrar), TOPIC, GROUP, True, clock())
        purge = lab.start_behind(registrar, lambda: store.purge(HOURLY, 100))
        registrar.commit()
    assert purge.result(DEADLINE) == 0
    assert lab.states() == {"a": READY}


def test_a_backfill_behind_a_purge_does_not_see_what_went(
    lab: Lab, store: SqlStore, clock: ManualClock
) -> None:
    store.append([message("b")])
    with lab.transaction() as purge:
        assert purge_in(lab, purge, clock) == 1
        registrar = lab.start_behind(purge, lambda: lab.register(store, earliest=True))
        purge.commit()
    registrar.result(DEADLINE)
    assert lab.states() == {"b": READY}


def test_publishers_do_not_wait_for_a_purge_of_their_topic(
    lab: Lab, store: SqlStore, clock: ManualClock
) -> None:
    with lab.transaction() as purge:
        assert purge_in(lab, purge, clock) == 1
        store.append([message("b"), message("c", "k")])
        purge.commit()
    assert lab.rows("SELECT id FROM {q}messages ORDER BY seq") == [("b",), ("c",)]


def test_of_two_janitors_one_works(lab: Lab, store: SqlStore, clock: ManualClock) -> None:
    store.append([message("b")])
    clock.advance(2 * HOUR)
    with lab.transaction() as purge:
        assert lab.sql.purge_dead(Borrowed(purge), IN_MICROSECONDS, 100, clock()) == 0
        assert store.purge(HOURLY, 100) == 0
        purge.commit()
    assert store.purge(HOURLY, 100) == 2


def test_a_batch_of_dead_deliveries_is_taken_from_all_groups(lab: Lab, clock: ManualClock) -> None:
    store = lab.consuming("one", "two", clock=clock)
    store.append([message(f"m{number}") for number in range(5)])
    for group in ("one", "two"):
        for claim in lab.claim(store, group=group):
            store.kill(claim, "no use")
    clock.advance(2 * HOUR)
    keep_messages = PurgePolicy(dead_retention=HOUR, acked_retention=1000 * HOUR)
    assert [store.purge(keep_messages, 4) for _ in range(4)] == [4, 4, 2, 0]


def test_a_purge_goes_on_where_its_window_ended(
    lab: Lab, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_lib.stores.sql.postgres.statements._WINDOW", 4)
    store = lab.consuming(clock=clock)
    store.append([message(f"m{number}") for number in range(10)])
    claims = lab.claim(store, 10)
    store.ack(claims[5:])
    clock.advance(2 * HOUR)
    store.append([message("young", topic="unheard")])
    assert store.purge(HOURLY, 100) == 0  # 0 to 3: all needed
    assert store.purge(HOURLY, 2) == 2  # 4 to 7: 5 and 6 go
    assert store.purge(HOURLY, 100) == 3  # 7, 8, 9, then the young one: back to the start
    store.ack(claims)
    assert store.purge(HOURLY, 100) == 4
    assert store.purge(HOURLY, 100) == 1
    assert lab.rows("SELECT id FROM {q}messages") == [("young",)]


def test_each_batch_reads_what_it_deletes_and_no_more(lab: Lab, clock: ManualClock) -> None:
    """However many are behind it, and however many before it wait for vacuum."""
    lab.do("ALTER TABLE {q}messages SET (autovacuum_enabled = off)")
    store = lab.store(clock=clock)
    for start in range(0, 20_000, 5000):
        store.append([message(f"m{number}") for number in range(start, start + 5000)])
    clock.advance(2 * HOUR)
    asked = "SELECT pg_stat_get_xact_tuples_fetched('{q}messages_pkey'::regclass)"
    read = [0]
    with lab.transaction() as connection:
        for _ in range(20):
            assert lab.sql.purge_messages(
                Borrowed(connection), IN_MICROSECONDS, IN_MICROSECONDS, 1000, clock()
            ) == 1000  # fmt: skip
            read.append(connection.exec_driver_sql(lab.tables.qualify(asked)).scalar_one())
        connection.rollback()
    batches = [after - before for before, after in itertools.pairwise(read)]
    assert max(batches) <= 2_000, batches
