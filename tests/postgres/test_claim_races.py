"""Claims against claims, heartbeats and late settlements, one step at a time."""

from __future__ import annotations

from datetime import timedelta

from queue_lib.stores.base import Stats
from queue_lib.stores.sql.dialect import Borrowed
from queue_lib.testing.clock import ManualClock
from tests.postgres.lab import DEADLINE, GROUP, LEASE, TOPIC, Lab, eventually, held, ids, message

READY, LEASED = 0, 3
SECOND = 1_000_000


def test_claims_do_not_wait_for_each_other(lab: Lab) -> None:
    store = lab.consuming()
    store.append([message("a"), message("b"), message("c")])
    with lab.transaction() as claimer:
        rows, *_ = lab.sql.claim(Borrowed(claimer), lab.group_id(), [], 2, 30 * SECOND, 0, None)
        assert [row.id for row in rows] == ["a", "b"]
        assert ids(lab.claim(store)) == ["c"]
        claimer.rollback()
    assert ids(lab.claim(store)) == ["a", "b"]


def test_a_heartbeat_in_flight_counts_against_the_cap(lab: Lab) -> None:
    """It began in time and will bring the lease back to life; the claim sees it run out.

    Were the lease taken for expired, the claim would give its place to another delivery: two
    unexpired leases under a cap of one.
    """
    clock = ManualClock()
    store = lab.consuming(clock=clock)
    store.append([message("a"), message("b")])
    claims = lab.claim(store, 1, cap=1)
    with lab.transaction() as heartbeat:
        assert lab.sql.extend(
            Borrowed(heartbeat), lab.group_id(), held(claims), 90 * SECOND, clock()
        )
        clock.advance(31)
        assert lab.claim(store, cap=1) == []
        heartbeat.commit()
    assert lab.claim(store, cap=1) == []
    assert store.stats(TOPIC, GROUP) == Stats(pending=1, leased=1)
    clock.advance(61)
    assert ids(lab.claim(store, cap=1)) == ["a"]


def test_a_heartbeat_that_rolls_back_gives_the_place_free(lab: Lab) -> None:
    clock = ManualClock()
    store = lab.consuming(clock=clock)
    store.append([message("a"), message("b")])
    claims = lab.claim(store, 1, cap=1)
    with lab.transaction() as heartbeat:
        lab.sql.extend(Borrowed(heartbeat), lab.group_id(), held(claims), 90 * SECOND, clock())
        clock.advance(31)
        assert lab.claim(store, cap=1) == []
        heartbeat.rollback()
    assert ids(lab.claim(store, cap=1)) == ["a"]


def test_a_heartbeat_that_waits_while_the_lease_runs_out_is_too_late(lab: Lab) -> None:
    """It reads the clock behind the row's lock: a claim may have counted the lease as free."""
    store = lab.consuming()
    store.append([message("a")])
    claims = lab.claim(store, lease=timedelta(milliseconds=200))
    with lab.transaction() as locker:
        locker.exec_driver_sql(lab.tables.qualify("SELECT * FROM {q}deliveries FOR UPDATE"))
        heartbeat = lab.start_behind(locker, lambda: store.extend(claims, LEASE))
        eventually(
            lambda: lab.ask("SELECT at < {q}now_v1(null) FROM {q}deliveries WHERE state = 3")
        )
        locker.commit()
    assert heartbeat.result(DEADLINE) == []
    assert store.ack(claims) == [claims[0].delivery_id]  # nobody claimed it again


def test_capped_claims_come_one_after_the_other(lab: Lab) -> None:
    store = lab.consuming()
    store.append([message(f"m{number}") for number in range(10)])
    with lab.transaction() as first:
        rows, *_ = lab.sql.claim(Borrowed(first), lab.group_id(), [], 3, 30 * SECOND, 4, None)
        assert len(rows) == 3
        second = lab.start_behind(first, lambda: lab.claim(store, cap=4))
        first.commit()
    assert len(second.result(DEADLINE)) == 1
    assert store.stats(TOPIC, GROUP).leased == 4


def test_a_full_cap_still_tells_the_next_due_time(lab: Lab) -> None:
    clock = ManualClock()
    store = lab.consuming(clock=clock)
    store.append([message("a"), message("b", deliver_at=clock.instant(50))])
    assert ids(lab.claim(store, 1, cap=1)) == ["a"]
    claims = lab.claim(store, 1, cap=1)
    assert (claims, claims.next_due) == ([], timedelta(seconds=50))


def test_a_cap_below_the_leases_that_ran_out_gets_through_them(lab: Lab) -> None:
    """More expired leases than one claim looks at, and a cap far below them."""
    clock = ManualClock()
    store = lab.consuming(clock=clock)
    store.append([message(f"m{number:04}") for number in range(2500)])
    assert len(lab.claim(store, 2500)) == 2500
    clock.advance(31)
    found = [len(lab.claim(store, 10, cap=10)) for _ in range(4)]
    assert found[-1] == 0
    assert sum(found) == 10
    assert store.stats(TOPIC, GROUP) == Stats(leased=2500)  # all but ten have run out


def test_an_expired_lease_that_a_claim_passed_over_is_still_held(lab: Lab) -> None:
    """Another claim has seen it run out and took something else: nobody claimed it again."""
    clock = ManualClock()
    store = lab.consuming(clock=clock)
    store.append([message("a", "k"), message("b", "other"), message("c", "k")])
    first, second = lab.claim(store, 2)
    clock.advance(31)
    assert ids(lab.claim(store, 1)) == ["a"]
    assert store.stats(TOPIC, GROUP) == Stats(pending=1, leased=2)
    assert store.extend([second], LEASE) == []
    assert store.ack([first]) == []
    assert store.ack([second]) == [second.delivery_id]
    assert list(lab.states()) == ["a", "c"]


def test_an_expired_lease_that_was_passed_over_counts_one_attempt(lab: Lab) -> None:
    clock = ManualClock()
    store = lab.consuming(clock=clock)
    store.append([message("a"), message("b")])
    lab.claim(store, 2)
    clock.advance(31)
    lab.claim(store, 1)
    clock.advance(5)
    (again,) = lab.claim(store, 1)
    assert (again.message.id, again.attempt) == ("b", 2)


def test_what_falls_due_at_once_comes_in_priority_order(lab: Lab) -> None:
    """More timers than one claim promotes: each of the thousand it looks at keeps its rank."""
    clock = ManualClock()
    store = lab.consuming(clock=clock)
    store.append(
        [
            message(f"m{number:03}", priority=number % 3, deliver_at=clock.instant(10))
            for number in range(300)
        ]
    )
    clock.advance(11)
    got = [claim.message.priority for _ in range(6) for claim in lab.claim(store, 50)]
    assert got == sorted(got)
    assert len(got) == 300
    assert set(lab.states().values()) == {LEASED}


def test_a_delivery_without_its_message_is_handed_out_all_the_same(lab: Lab) -> None:
    store = lab.consuming()
    store.append([message("a", "k"), message("b", "k")])
    lab.rows("DELETE FROM {q}messages WHERE id = 'a' RETURNING 1")
    (claim,) = lab.claim(store)
    assert (claim.message.id, claim.message.key, claim.message.payload) == ("", "k", b"")
    assert store.kill(claim, "damaged") is True
    assert ids(lab.claim(store)) == ["b"]
