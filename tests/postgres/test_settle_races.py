"""Settlements against publishers of the same lane, heartbeats and claims, one step at a time.

A settlement never waits for a publisher. What it cannot decide while a publisher's transaction
is open, the next claim finishes: until then the lane's head is in state 5 or 6.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from queue_lib.stores.base import Stats
from queue_lib.stores.sql.dialect import Borrowed
from tests.postgres.lab import DEADLINE, GROUP, LEASE, TOPIC, Lab, held, ids, message

READY, TIMER, WAITING, LEASED, DEAD, OWING_DONE, OWING_DEAD = range(7)


def test_an_ack_beside_an_open_publisher_is_done_at_once(lab: Lab) -> None:
    """The publisher has seen a live head; the acknowledgement cannot see the new message."""
    store = lab.consuming()
    store.append([message("head", "k")])
    claims = lab.claim(store)
    with lab.transaction() as publisher:
        store.append_in(publisher, [message("next", "k")])
        assert store.ack(claims) == [claims[0].delivery_id]
        assert lab.states() == {"head": OWING_DONE}
        assert store.stats(TOPIC, GROUP) == Stats()
        assert lab.claim(store) == []
        publisher.commit()
    assert lab.states() == {"head": OWING_DONE, "next": WAITING}
    assert ids(lab.claim(store)) == ["next"]
    assert lab.states() == {"next": LEASED}


def test_a_kill_beside_an_open_publisher_is_done_at_once(lab: Lab) -> None:
    store = lab.consuming()
    store.append([message("head", "k")])
    (claim,) = lab.claim(store)
    with lab.transaction() as publisher:
        store.append_in(publisher, [message("next", "k")])
        assert store.kill(claim, "no use") is True
        assert lab.states() == {"head": OWING_DEAD}
        assert store.stats(TOPIC, GROUP) == Stats(dead=1)
        publisher.commit()
    assert ids(lab.claim(store)) == ["next"]
    assert lab.states() == {"head": DEAD, "next": LEASED}
    assert store.stats(TOPIC, GROUP) == Stats(leased=1, dead=1)
    assert lab.rows("SELECT attempts, error, token FROM {q}deliveries WHERE state = 4") == [
        (1, "no use", None)
    ]


@pytest.mark.parametrize(("settle", "left"), [("ack", {}), ("kill", {"head": DEAD})])
def test_the_publisher_rolls_back_after_all(lab: Lab, settle: str, left: dict[str, int]) -> None:
    store = lab.consuming()
    store.append([message("head", "k")])
    (claim,) = lab.claim(store)
    with lab.transaction() as publisher:
        store.append_in(publisher, [message("next", "k")])
        assert store.ack([claim]) if settle == "ack" else store.kill(claim, "no use")
        publisher.rollback()
    assert lab.claim(store) == []
    assert lab.states() == left
    store.append([message("later", "k")])
    assert lab.states() == {**left, "later": READY}


def test_a_lane_that_is_owed_takes_further_messages_in_order(lab: Lab) -> None:
    store = lab.consuming()
    store.append([message("head", "k")])
    claims = lab.claim(store)
    with lab.transaction() as publisher:
        store.append_in(publisher, [message("a", "k")])
        store.ack(claims)
        publisher.commit()
    store.append([message("b", "k")])
    assert lab.states() == {"head": OWING_DONE, "a": WAITING, "b": WAITING}
    for name in ("a", "b"):
        claims = lab.claim(store)
        assert ids(claims) == [name]
        store.ack(claims)
    assert lab.states() == {}


def test_a_claim_beside_the_next_open_publisher_passes_a_visible_follower_on(lab: Lab) -> None:
    """Publishers that follow each other without a gap must not hold the lane up for ever."""
    store = lab.consuming()
    store.append([message("head", "k")])
    claims = lab.claim(store)
    with lab.transaction() as first:
        store.append_in(first, [message("a", "k")])
        store.ack(claims)
        first.commit()
    with lab.transaction() as second:
        store.append_in(second, [message("b", "k")])
        assert ids(lab.claim(store)) == ["a"]
        second.commit()
    assert lab.states() == {"a": LEASED, "b": WAITING}


def test_a_visible_follower_is_promoted_beside_an_open_publisher(lab: Lab) -> None:
    store = lab.consuming()
    store.append([message("head", "k"), message("a", "k")])
    claims = lab.claim(store)
    with lab.transaction() as publisher:
        store.append_in(publisher, [message("b", "k")])
        store.ack(claims)
        assert lab.states() == {"a": READY}
        publisher.commit()
    assert lab.states() == {"a": READY, "b": WAITING}


def test_a_publisher_of_another_lane_on_the_stripe_is_no_different(lab: Lab) -> None:
    store = lab.consuming()
    store.append([message("head", "k")])
    claims = lab.claim(store)
    with lab.transaction() as publisher:
        store.append_in(publisher, [message("mate", lab.stripe_mate("k"))])
        store.ack(claims)
        assert lab.states() == {"head": OWING_DONE}
        publisher.commit()
    store.append([message("next", "k")])
    assert ids(lab.claim(store)) == ["mate", "next"]
    assert lab.states() == {"mate": LEASED, "next": LEASED}


def test_a_batch_settles_beside_an_open_publisher_lane_by_lane(lab: Lab) -> None:
    store = lab.consuming()
    store.append([message("a", "k"), message("b", "other"), message("c")])
    claims = lab.claim(store)
    with lab.transaction() as publisher:
        store.append_in(publisher, [message("next", "k")])
        assert len(store.ack(claims)) == 3
        assert lab.states() == {"a": OWING_DONE}
        publisher.commit()
    assert ids(lab.claim(store)) == ["next"]


def test_two_claims_pass_an_owed_lane_on_once(lab: Lab) -> None:
    store = lab.consuming()
    store.append([message("head", "k")])
    claims = lab.claim(store)
    with lab.transaction() as publisher:
        store.append_in(publisher, [message("next", "k")])
        store.ack(claims)
        publisher.commit()
    with lab.transaction() as claimer:
        rows, *_ = lab.sql.claim(Borrowed(claimer), lab.group_id(), [], 10, 30_000_000, 0, None)
        assert [row.id for row in rows] == ["next"]
        assert lab.claim(store) == []  # neither waits nor promotes it again
        claimer.commit()
    assert lab.states() == {"next": LEASED}


def test_an_owed_promotion_keeps_the_schedule_of_the_follower(lab: Lab) -> None:
    store = lab.consuming()
    store.append([message("head", "k")])
    claims = lab.claim(store)
    with lab.transaction() as publisher:
        due = claims[0].message.published_at
        assert due is not None
        store.append_in(publisher, [message("next", "k", deliver_at=due + timedelta(hours=1))])
        store.ack(claims)
        publisher.commit()
    claims = lab.claim(store)
    assert claims == []
    assert claims.next_due is not None
    assert timedelta(minutes=58) < claims.next_due < timedelta(hours=1)
    assert lab.states() == {"next": TIMER}


def test_a_publisher_behind_a_settlement_finds_the_lane_empty(lab: Lab) -> None:
    store = lab.consuming()
    store.append([message("head", "k")])
    claims = lab.claim(store)
    with lab.transaction() as settler:
        assert lab.sql.settle(Borrowed(settler), lab.group_id(), held(claims), None, None)
        publisher = lab.start_behind(settler, lambda: store.append([message("next", "k")]))
        settler.commit()
    publisher.result(DEADLINE)
    assert lab.states() == {"next": READY}


def test_a_settlement_behind_a_heartbeat_settles_the_renewed_row(lab: Lab) -> None:
    """The heartbeat moves the row: what the settlement has locked must be the new version."""
    store = lab.consuming()
    store.append([message("a"), message("b", "k"), message("c", "k")])
    claims = lab.claim(store)
    with lab.transaction() as heartbeat:
        assert lab.sql.extend(Borrowed(heartbeat), lab.group_id(), held(claims), 60_000_000, None)
        settler = lab.start_behind(heartbeat, lambda: store.ack(claims))
        heartbeat.commit()
    assert len(settler.result(DEADLINE)) == 2
    assert lab.states() == {"c": READY}


@pytest.mark.parametrize("operation", ["requeue", "extend"])
def test_a_write_behind_a_heartbeat_changes_the_renewed_row(lab: Lab, operation: str) -> None:
    store = lab.consuming()
    store.append([message("a")])
    (claim,) = lab.claim(store)
    with lab.transaction() as heartbeat:
        lab.sql.extend(Borrowed(heartbeat), lab.group_id(), held([claim]), 60_000_000, None)
        if operation == "extend":
            writer = lab.start_behind(heartbeat, lambda: bool(store.extend([claim], 2 * LEASE)))
        else:
            writer = lab.start_behind(heartbeat, lambda: store.retry(claim, LEASE, "oops"))
        heartbeat.commit()
    assert writer.result(DEADLINE) is True
    state = LEASED if operation == "extend" else TIMER
    assert lab.states() == {"a": state}


def test_a_settlement_behind_a_settlement_holds_nothing(lab: Lab) -> None:
    store = lab.consuming()
    store.append([message("a", "k"), message("b", "k")])
    claims = lab.claim(store)
    with lab.transaction() as first:
        lab.sql.settle(Borrowed(first), lab.group_id(), held(claims), None, None)
        second = lab.start_behind(first, lambda: store.ack(claims))
        first.commit()
    assert second.result(DEADLINE) == []
    assert lab.states() == {"b": READY}


def test_claims_in_another_order_do_not_deadlock(lab: Lab) -> None:
    """A heartbeat and an acknowledgement of one batch; both lock the rows in seq order."""
    store = lab.consuming()
    store.append([message("a"), message("b"), message("c")])
    a, b, c = lab.claim(store)
    beat = [*held([a]), *held([c]), *held([b])]
    with lab.transaction() as gate, lab.transaction() as heartbeat:
        lab.sql.extend(Borrowed(gate), lab.group_id(), held([c]), 60_000_000, None)
        crossing = lab.start_behind(
            gate,
            lambda: lab.sql.extend(Borrowed(heartbeat), lab.group_id(), beat, 60_000_000, None),
        )
        settler = lab.start_behind(heartbeat, lambda: store.ack([b, a]))
        gate.rollback()
        assert len(crossing.result(DEADLINE)) == 3
        heartbeat.commit()
    assert len(settler.result(DEADLINE)) == 2
    assert lab.states() == {"c": LEASED}


@pytest.mark.parametrize("token", ["", "x", "' OR true --", "\N{SNOWMAN}", "0" * 3000])
def test_a_forged_token_does_not_match(lab: Lab, token: str) -> None:
    store = lab.consuming()
    store.append([message("a", "k")])
    (claim,) = lab.claim(store)
    claim.claim_token = token
    assert store.ack([claim]) == []
    assert store.extend([claim], LEASE) == []
    assert store.retry(claim, LEASE, "x") is False
    assert store.kill(claim, "x") is False
    store.release([claim])
    assert lab.states() == {"a": LEASED}
