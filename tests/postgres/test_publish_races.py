"""Publishers against each other and against the registration of groups, one step at a time.

`start_behind` is the proof that a step waits: it returns only when PostgreSQL says that the
other backend is blocked by the given one. What must not wait simply runs to its end while the
other transaction is open.
"""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from queue_lib.errors import StoreUnavailableError, UnsupportedError
from queue_lib.stores.sql.dialect import Borrowed
from tests.postgres.lab import DEADLINE, GROUP, TOPIC, Lab, ids, message

READY, TIMER, WAITING = 0, 1, 2


def register_in(lab: Lab, connection: sa.Connection, group: str) -> None:
    """Register a group from `earliest` in an open transaction."""
    lab.sql.ensure_group(Borrowed(connection), TOPIC, group, True, None)


def test_two_first_messages_of_a_lane_get_one_head(lab: Lab) -> None:
    store = lab.consuming()
    with lab.transaction() as first:
        store.append_in(first, [message("a", "k")])
        second = lab.start_behind(first, lambda: store.append([message("b", "k")]))
        first.commit()
    second.result(DEADLINE)
    assert lab.states() == {"a": READY, "b": WAITING}


def test_a_publisher_that_rolls_back_leaves_the_lane_to_the_next(lab: Lab) -> None:
    store = lab.consuming()
    with lab.transaction() as first:
        store.append_in(first, [message("a", "k")])
        second = lab.start_behind(first, lambda: store.append([message("b", "k")]))
        first.rollback()
    second.result(DEADLINE)
    assert lab.states() == {"b": READY}


def test_the_order_of_a_lane_is_the_order_of_commits(lab: Lab) -> None:
    store = lab.consuming()
    with lab.transaction() as slow, lab.transaction() as fast:
        slow.exec_driver_sql("SELECT 1")  # begun first
        store.append_in(fast, [message("fast", "k")])
        late = lab.start_behind(fast, lambda: store.append_in(slow, [message("slow", "k")]))
        fast.commit()
        late.result(DEADLINE)
        slow.commit()
    assert ids(lab.claim(store)) == ["fast"]
    assert lab.states() == {"fast": 3, "slow": WAITING}


def test_other_keys_and_unkeyed_messages_do_not_wait(lab: Lab) -> None:
    store = lab.consuming()
    with lab.transaction() as open_one:
        store.append_in(open_one, [message("a", "k")])
        store.append([message("b", "other"), message("c")])
        open_one.commit()
    assert lab.states() == {"a": READY, "b": READY, "c": READY}


def test_a_group_being_registered_gets_what_is_published_meanwhile(lab: Lab) -> None:
    """Its backfill did not see the message, so the publish must see the group."""
    store = lab.consuming()
    store.append([message("old")])
    with lab.transaction() as registrar:
        register_in(lab, registrar, "late")
        publisher = lab.start_behind(registrar, lambda: store.append([message("new")]))
        registrar.commit()
    publisher.result(DEADLINE)
    assert lab.states("late") == {"old": READY, "new": READY}


def test_a_group_registered_behind_an_open_publish_backfills_it(lab: Lab) -> None:
    store = lab.consuming()
    store.append([message("old")])
    with lab.transaction() as publisher:
        store.append_in(publisher, [message("new")])
        registrar = lab.start_behind(
            publisher, lambda: lab.register(lab.store(), "late", earliest=True)
        )
        publisher.commit()
    registrar.result(DEADLINE)
    assert lab.states("late") == {"old": READY, "new": READY}


def test_the_very_first_publish_to_a_topic_before_its_first_group(lab: Lab) -> None:
    """There is no row to lock yet: the one who makes it holds back the other."""
    store = lab.store()
    with lab.transaction() as publisher:
        store.append_in(publisher, [message("a")])
        registrar = lab.start_behind(publisher, lambda: lab.register(lab.store(), earliest=True))
        publisher.commit()
    registrar.result(DEADLINE)
    assert lab.states() == {"a": READY}


def test_the_very_first_publish_to_a_topic_behind_its_first_group(lab: Lab) -> None:
    store = lab.store()
    with lab.transaction() as registrar:
        register_in(lab, registrar, GROUP)
        publisher = lab.start_behind(registrar, lambda: store.append([message("a")]))
        registrar.commit()
    publisher.result(DEADLINE)
    assert lab.states() == {"a": READY}


def test_the_maker_of_a_topic_rolls_back(lab: Lab) -> None:
    store = lab.store()
    with lab.transaction() as registrar:
        register_in(lab, registrar, GROUP)
        publisher = lab.start_behind(registrar, lambda: store.append([message("a")]))
        registrar.rollback()
    publisher.result(DEADLINE)
    lab.register(store, earliest=True)
    assert lab.states() == {"a": READY}


def test_a_keyed_publish_behind_a_backfill_waits_behind_its_heads(lab: Lab) -> None:
    """The heads of the new group must be in the snapshot that looks for them."""
    store = lab.consuming()
    store.append([message("old", "k")])
    with lab.transaction() as registrar:
        register_in(lab, registrar, "late")
        publisher = lab.start_behind(registrar, lambda: store.append([message("new", "k")]))
        registrar.commit()
    publisher.result(DEADLINE)
    assert lab.states("late") == {"old": READY, "new": WAITING}


def test_publishers_do_not_queue_behind_a_waiting_registration(lab: Lab) -> None:
    store = lab.consuming()
    with lab.transaction() as open_one:
        store.append_in(open_one, [message("a")])
        registrar = lab.start_behind(
            open_one, lambda: lab.register(lab.store(), "late", earliest=True)
        )
        store.append([message("b"), message("c", "k")])
        assert not registrar.done()
        open_one.commit()
    registrar.result(DEADLINE)
    assert list(lab.states("late")) == ["a", "b", "c"]


def test_two_registrations_at_once_backfill_once(lab: Lab) -> None:
    store = lab.store()
    store.append([message("a", "k"), message("b", "k")])
    with lab.transaction() as first:
        register_in(lab, first, GROUP)
        second = lab.start_behind(first, lambda: lab.register(lab.store(), earliest=True))
        first.commit()
    second.result(DEADLINE)
    assert lab.states() == {"a": READY, "b": WAITING}


def test_a_registration_gives_up_on_a_transaction_that_never_ends(lab: Lab) -> None:
    store = lab.store()
    settings = "SELECT proconfig FROM pg_proc WHERE oid = '{q}ensure_group_v1'::regproc"
    assert "lock_timeout=10s" in lab.ask(settings)
    lab.do("ALTER FUNCTION {q}ensure_group_v1 SET lock_timeout = '50ms'")
    with lab.transaction() as mine:
        store.append_in(mine, [message("a")])
        with pytest.raises(StoreUnavailableError, match="lock timeout"):
            lab.register(lab.store())


def test_equal_ids_in_another_order_do_not_deadlock(lab: Lab) -> None:
    """In the order in which they are handed over, the two would wait for each other at last."""
    store = lab.consuming()
    with lab.transaction() as gate, lab.transaction() as first:
        store.append_in(gate, [message("c")])
        crossing = lab.start_behind(
            gate, lambda: store.append_in(first, [message("a"), message("c"), message("b")])
        )
        second = lab.start_behind(first, lambda: store.append([message("b"), message("a")]))
        gate.rollback()
        crossing.result(DEADLINE)
        first.commit()
        second.result(DEADLINE)
    assert lab.rows("SELECT id FROM {q}messages ORDER BY seq") == [("a",), ("c",), ("b",)]


def test_equal_keys_in_another_order_do_not_deadlock(lab: Lab) -> None:
    store = lab.consuming()
    keys = [f"k{number}" for number in range(3)]
    low, middle, high = sorted(keys, key=lambda key: lab.ask("SELECT {q}stripe_v1(%s)", key))
    with lab.transaction() as gate, lab.transaction() as first:
        store.append_in(gate, [message("gate", high)])
        crossing = lab.start_behind(
            gate,
            lambda: store.append_in(
                first, [message("1", low), message("2", high), message("3", middle)]
            ),
        )
        second = lab.start_behind(
            first, lambda: store.append([message("4", middle), message("5", low)])
        )
        gate.rollback()
        crossing.result(DEADLINE)
        first.commit()
        second.result(DEADLINE)
    assert lab.ask("SELECT count(*) FROM {q}messages") == 5


def test_ten_publishers_of_the_same_ids_and_keys(lab: Lab) -> None:
    store = lab.consuming()
    messages = [message(f"m{number:04}", f"k{number % 50}") for number in range(400)]
    start = threading.Barrier(10)

    def publish(number: int) -> None:
        start.wait(DEADLINE)
        for turn in range(3):
            store.append((messages if number % 2 else messages[::-1])[turn * 100 :])

    for future in [lab.start(publish, number) for number in range(10)]:
        future.result(DEADLINE)
    assert len(lab.states()) == 400
    assert sum(state == READY for state in lab.states().values()) == 50


def test_the_first_of_two_equal_ids_in_one_call_wins(lab: Lab) -> None:
    store = lab.consuming()
    store.append([message("b", payload=b"1"), message("a"), message("b", payload=b"2")])
    claims = lab.claim(store)
    assert [(claim.message.id, claim.message.payload) for claim in claims] == [
        ("b", b"1"), ("a", b"x"),
    ]  # fmt: skip


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_stricter_caller_is_refused_a_key_and_keeps_its_transaction(
    lab: Lab, isolation: str
) -> None:
    """Else: head acknowledged after the caller's snapshot, and the lane stands still."""
    store = lab.consuming()
    with lab.transaction(isolation) as strict:
        strict.exec_driver_sql("CREATE TEMP TABLE mine (x int)")
        with pytest.raises(UnsupportedError, match="READ COMMITTED"):
            store.append_in(strict, [message("a"), message("b", "k")])
        store.append_in(strict, [message("c")])
        assert strict.exec_driver_sql("SELECT count(*) FROM mine").scalar() == 0
        strict.commit()
    assert lab.states() == {"c": READY}


def test_read_uncommitted_is_not_stricter(lab: Lab) -> None:
    store = lab.consuming()
    with lab.transaction("READ UNCOMMITTED") as mine:
        store.append_in(mine, [message("a", "k")])
        mine.commit()
    assert lab.states() == {"a": READY}


def test_a_stricter_caller_that_misses_a_group_fails(lab: Lab) -> None:
    """Its snapshot knows no such group, whose backfill knew no such message: it would be lost."""
    store = lab.consuming()
    with lab.transaction("REPEATABLE READ") as strict:
        strict.exec_driver_sql("SELECT 1")
        lab.register(store, "late", earliest=True)
        with pytest.raises(StoreUnavailableError, match="could not serialize"):
            store.append_in(strict, [message("a")])


def test_a_savepoint_takes_its_messages_and_locks_with_it(lab: Lab) -> None:
    store = lab.consuming()
    with lab.transaction() as outer:
        store.append_in(outer, [message("a")])
        savepoint = outer.begin_nested()
        store.append_in(outer, [message("b", "k")])
        savepoint.rollback()
        store.append([message("c", "k")])  # does not wait: the lane's lock went with the savepoint
        outer.commit()
    assert lab.states() == {"a": READY, "c": READY}
