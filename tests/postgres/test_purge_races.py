"""The purge against publishers, late groups and other janitors, one step at a time."""

from __future__ import annotations

import threading
from datetime import timedelta

from queue_lib.stores.base import PurgePolicy
from queue_lib.testing.clock import ManualClock
from tests.postgres.lab import DEADLINE, GROUP, TOPIC, Lab, ids, message

HOUR = timedelta(hours=1)
HOURLY = PurgePolicy(dead_retention=HOUR, acked_retention=HOUR)
MICROSECONDS = 3_600_000_000


def old_message(lab: Lab) -> tuple[ManualClock, object]:
    """Leave a message behind that no delivery needs and that is old enough."""
    clock = ManualClock()
    store = lab.store(clock=clock)
    store.append([message("a")])
    clock.advance(2 * HOUR)
    return clock, store


def purge_in(lab: Lab, connection: object, now: int) -> int:
    return lab.sql.purge_messages(connection, MICROSECONDS, MICROSECONDS, 100, now)  # type: ignore[arg-type]


def test_a_publish_of_an_id_that_is_being_purged_stores_a_new_message(lab: Lab) -> None:
    clock, _ = old_message(lab)
    store = lab.consuming(clock=clock)
    with lab.transaction() as purge:
        assert purge_in(lab, purge, clock()) == 1
        publisher = lab.start_behind(purge, lambda: store.append([message("a", payload=b"new")]))
        purge.commit()
    publisher.result(DEADLINE)
    assert [claim.message.payload for claim in lab.claim(store)] == [b"new"]


def test_a_purge_that_rolls_back_leaves_the_id_taken(lab: Lab) -> None:
    clock, _ = old_message(lab)
    store = lab.consuming(clock=clock)
    with lab.transaction() as purge:
        purge_in(lab, purge, clock())
        publisher = lab.start_behind(purge, lambda: store.append([message("a", payload=b"new")]))
        purge.rollback()
    publisher.result(DEADLINE)
    assert lab.claim(store) == []


def test_a_purge_beside_an_open_publish_of_the_same_id(lab: Lab) -> None:
    """The publish came first and found the id taken: nothing was stored, and nothing is kept."""
    clock, _ = old_message(lab)
    store = lab.consuming(clock=clock)
    with lab.transaction() as publisher:
        store.append_in(publisher, [message("a"), message("b")])
        assert store.purge(HOURLY, 100) == 1
        publisher.commit()
    assert ids(lab.claim(store)) == ["b"]


def test_a_backfill_in_flight_keeps_its_messages(lab: Lab) -> None:
    """The purge cannot see its deliveries yet: it leaves the topic alone, and does not wait."""
    clock, store = old_message(lab)
    with lab.transaction() as registrar:
        lab.sql.ensure_group(registrar, TOPIC, GROUP, True, clock())
        assert store.purge(HOURLY, 100) == 0  # type: ignore[attr-defined]
        registrar.commit()
    assert lab.states() == {"a": 0}
    assert store.purge(HOURLY, 100) == 0  # type: ignore[attr-defined]


def test_a_backfill_behind_a_purge_does_not_see_what_went(lab: Lab) -> None:
    clock, store = old_message(lab)
    store.append([message("b")])  # type: ignore[attr-defined]
    with lab.transaction() as purge:
        assert purge_in(lab, purge, clock()) == 1
        registrar = lab.start_behind(purge, lambda: lab.register(store, earliest=True))  # type: ignore[arg-type]
        purge.commit()
    registrar.result(DEADLINE)
    assert lab.states() == {"b": 0}
