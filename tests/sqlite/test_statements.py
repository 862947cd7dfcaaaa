"""The statements by themselves, on a clock that stands still."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queue_lib.stores.schema import DEAD, LEASED, READY, TIMER, WAITING
from queue_lib.stores.sql.dialect import Held, StateCounts
from queue_lib.stores.sql.sqlite import statements
from tests.sqlite.support import NOW, SECOND, Queue, held, message

STATES = "select seq, state, at from {q}deliveries order by group_id, seq"


def test_the_state_of_a_new_delivery_depends_on_its_lane_and_its_schedule(queue: Queue):
    later, past = NOW + SECOND, NOW - SECOND
    queue.append(
        message("plain"),
        message("late", deliver_at=later),
        message("past", deliver_at=past),
        message("head", key="a", deliver_at=later),
        message("behind", key="a"),
        message("scheduled behind", key="a", deliver_at=later + 1),
    )
    queue.append(message("behind the one before", key="a"), message("other lane", key="b"))
    assert queue.rows(STATES) == [
        (1, READY, NOW),
        (2, TIMER, later),
        (3, READY, NOW),
        (4, TIMER, later),
        (5, WAITING, 0),
        (6, WAITING, later + 1),
        (7, WAITING, 0),
        (8, READY, NOW),
    ]


def test_several_topics_in_one_call_each_reach_their_own_groups(queue: Queue):
    queue.register("audit", topic="invoices")
    queue.append(
        message("a"),
        message("b", topic="invoices"),
        message("c"),
        message("nobody", topic="unheard"),
        message("a", topic="invoices"),
    )
    names = """
        select t.name, g.name, m.id from {q}deliveries d
        join {q}messages m using (seq) join {q}groups g on g.id = d.group_id
        join {q}topics t on t.id = m.topic_id order by m.seq, g.name
    """
    assert queue.rows(names) == [
        ("orders", "billing", "a"),
        ("invoices", "audit", "b"),
        ("orders", "billing", "c"),
    ]


def test_only_a_dead_letter_copy_that_no_group_takes_is_marked(queue: Queue):
    queue.append(
        message("taken", dead_letter=True),
        message("copy", topic="dead", dead_letter=True),
        message("plain", topic="dead"),
    )
    marked = "select id from {q}messages where untaken order by seq"
    assert queue.rows(marked) == [("copy",)]
    queue.register("inspection", topic="dead")
    assert queue.rows(marked) == [("copy",)]
    queue.register("redrive", topic="dead", earliest=True)
    assert queue.rows(marked) == []


def test_a_backfill_places_every_message_as_a_publish_would(queue: Queue):
    queue.append(
        message("a", key="k"),
        message("b", key="k"),
        message("c", deliver_at=NOW + SECOND),
        message("elsewhere", topic="invoices"),
    )
    group = queue.register("late", earliest=True)
    placed = queue.rows(
        f"select seq, state, at from {{q}}deliveries where group_id = {group} order by seq"
    )
    assert placed == [(1, READY, NOW), (2, WAITING, 0), (3, TIMER, NOW + SECOND)]


def test_a_claim_ends_timers_and_leases_first_and_then_takes_by_priority(queue: Queue):
    queue.append(message("expiring", priority=1), message("later", priority=2))
    assert queue.claimed(1, lease=10) == ["expiring"]
    queue.append(
        message("urgent", deliver_at=NOW + 5, priority=-1),
        message("not yet", deliver_at=NOW + 100, priority=-2),
    )
    queue.now += 11
    rows, next_due = queue.claim(10)
    assert [row.id for row in rows] == ["urgent", "expiring", "later"]
    assert [row.attempts for row in rows] == [0, 1, 0]
    assert next_due == 89
    assert len({row.token for row in rows}) == 3


def test_a_claim_that_is_full_says_nothing_of_timers(queue: Queue):
    queue.append(message("a"), message("b"), message("c", deliver_at=NOW + 1))
    assert queue.claim(2)[1] is None


def test_timers_end_in_slices_and_the_rest_is_due_at_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(statements, "_SLICE", 3)
    queue.append(*(message(f"t{n}", deliver_at=NOW + n) for n in range(1, 6)))
    queue.now += 100
    rows, next_due = queue.claim(2)
    assert [row.id for row in rows] == ["t1", "t2"]
    assert next_due is None
    assert [state for _, state, _ in queue.rows(STATES)] == [LEASED, LEASED, READY, TIMER, TIMER]
    assert queue.claimed(4) == ["t3", "t4", "t5"]


def test_an_expired_lease_is_held_until_somebody_claims_the_row(queue: Queue):
    queue.append(message("a", priority=-1), message("b"))
    first, _ = queue.claim(2, lease=10)
    queue.now += 11
    (again,), _ = queue.claim(1)  # sees both run out, and takes one of them
    assert again.id == "a"
    assert queue.settle(first) == {2}
    assert queue.settle([again]) == {1}


def test_the_cap_counts_leases_that_have_not_run_out(queue: Queue):
    queue.append(*(message(f"m{n}") for n in range(6)))
    assert queue.claimed(2, lease=10, cap=3) == ["m0", "m1"]
    assert queue.claimed(9, cap=3) == ["m2"]
    assert queue.claim(9, cap=3) == ([], None)
    assert queue.claim(9, cap=2) == ([], None)  # lowered below what is held
    queue.now += 11
    assert queue.claimed(9, cap=3) == ["m0", "m1"]


def test_a_settled_lane_moves_to_its_oldest_waiting_delivery(queue: Queue):
    queue.append(
        message("a1", key="a"),
        message("b1", key="b"),
        message("a2", key="a", deliver_at=NOW + SECOND),
        message("a3", key="a"),
        message("b2", key="b"),
    )
    (a1, b1), _ = queue.claim()
    queue.now += 10
    assert queue.settle([a1], "no") == {1}
    assert queue.settle([b1]) == {2}
    assert queue.rows(STATES) == [
        (1, DEAD, queue.now),
        (3, TIMER, NOW + SECOND),
        (4, WAITING, 0),
        (5, READY, queue.now),
    ]
    # A second acknowledgement does not push anything to the front.
    assert queue.settle([a1, b1]) == set()
    assert queue.claimed() == ["b2"]
    queue.now += SECOND
    assert queue.claimed() == ["a2"]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_a_lane_is_its_key_byte_for_byte(queue: Queue, key: str):
    first, second = (message(f"{key}-{n}-{queue.now}", key=key) for n in (1, 2))
    queue.append(first, second)
    (head,), _ = queue.claim()
    queue.settle([head])
    (follower,), _ = queue.claim()
    assert (head.id, follower.id, follower.key) == (first.id, second.id, key)
    queue.settle([follower])
    queue.now += 1  # other ids for the next example


@pytest.mark.parametrize("token", ["", "x", "'", '"}', "\0", "\ud800", "{}", "é" * 100_000])
def test_a_forged_token_holds_nothing(queue: Queue, token: str):
    queue.append(message("a"))
    (row,), _ = queue.claim()
    for forged in (Held(row.seq, token, None), Held(row.seq + 1, row.token, None)):
        assert queue.database.write(queue.sql.settle, queue.group, [forged], None, NOW) == set()
        assert queue.database.write(queue.sql.extend, queue.group, [forged], 10, NOW) == set()
    assert queue.settle([row]) == {row.seq}


def test_stale_and_valid_claims_of_a_row_in_one_call_settle_it(queue: Queue):
    queue.append(message("a"))
    (stale,), _ = queue.claim(lease=10)
    queue.now += 11
    (valid,), _ = queue.claim()
    assert queue.settle([valid, stale, valid]) == {valid.seq}
    assert queue.rows(STATES) == []


def test_requeue_and_extend_keep_what_they_are_not_told_to_change(queue: Queue):
    def requeue(backoff: int, error: str | None, spend: int) -> set[int]:
        (row,), _ = queue.claim()
        return queue.database.write(
            queue.sql.requeue, queue.group, held([row]), backoff, error, spend, queue.now
        )

    queue.append(message("a"))
    inside = "select state, at, attempts, error, token from {q}deliveries"
    requeue(5, "first", 1)
    assert queue.rows(inside) == [(TIMER, NOW + 5, 1, "first", None)]
    queue.now += 5
    requeue(0, None, 0)
    assert queue.rows(inside) == [(READY, NOW + 5, 1, "first", None)]
    (row,), _ = queue.claim(lease=10)

    def extend(now: int) -> set[int]:
        write = queue.database.write
        return write(queue.sql.extend, queue.group, held([row]), 100, now)

    assert extend(queue.now + 10) == {row.seq}  # at its very end
    assert extend(queue.now + 111) == set()


def test_a_delivery_whose_message_is_gone_does_not_stop_the_others(queue: Queue):
    queue.append(message("a"), message("lost", key="k"), message("c"))
    queue.database.write(
        lambda connection: connection.execute("delete from queue_messages where id = 'lost'")
    )
    rows, _ = queue.claim()
    assert [(row.id, row.payload, row.deliver_at) for row in rows] == [
        ("a", b"", 0),
        (None, b"", 0),
        ("c", b"", 0),
    ]
    assert rows[1].key == "k"
    assert queue.settle(rows) == {1, 2, 3}


def test_a_purge_goes_on_where_its_window_ended(queue: Queue, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(statements, "_WINDOW", 4)
    queue.append(*(message(f"m{n}") for n in range(10)))
    rows, _ = queue.claim(10)
    queue.settle([row for row in rows if row.seq not in (1, 2, 3, 4, 5)])
    queue.now += 10
    queue.append(message("young", topic="unheard"))

    def purge(batch: int) -> int:
        write = queue.database.write
        return write(queue.sql.purge_messages, 5, 5, batch, queue.now)

    assert purge(100) == 0  # 1 to 4: all needed
    assert purge(2) == 2  # 5 to 8: 6 and 7 go
    assert purge(100) == 3  # 8, 9, 10, then the young one: back to the start
    queue.settle(rows)
    assert purge(100) == 4
    assert purge(100) == 1
    assert queue.rows("select id from {q}messages") == [("young",)]


def test_a_number_that_comes_again_after_a_purge_is_another_delivery(queue: Queue):
    """Rowids go on from the highest there is, and a purge may take that one."""
    queue.append(message("old"))
    ((old,), _) = queue.claim()
    queue.settle([old])
    queue.now += SECOND
    assert queue.database.write(queue.sql.purge_messages, 5, 5, 100, queue.now) == 1
    queue.append(message("new", key="k"), message("next", key="k"))
    late = queue.register("late", earliest=True)
    ((new,), _) = queue.claim()
    assert (new.id, new.seq) == ("new", old.seq)
    assert queue.settle([old]) == set()
    assert queue.settle([new]) == {new.seq}
    assert queue.claimed() == ["next"]
    queue.group = late
    assert queue.claimed() == ["new"]


def test_counts_tell_apart_what_deliveries_wait_for(queue: Queue):
    assert queue.database.read(queue.sql.count, queue.group, NOW) == StateCounts(
        0, 0, 0, 0, 0, 0, None
    )
    queue.append(
        message("ready"),
        message("timer over", deliver_at=NOW + 5),
        message("scheduled", deliver_at=NOW + 100),
        message("leased", priority=-2, key="k"),
        message("waiting", key="k"),
        message("dead", priority=-1),
    )
    (_, dead), _ = queue.claim(2)
    queue.settle([dead], "no")
    assert queue.database.read(queue.sql.count, queue.group, NOW + 10) == StateCounts(
        ready=2, scheduled=1, retrying=0, waiting=1, leased=1, dead=1, oldest_ready_age=10
    )


def test_the_database_tells_the_time_in_production(queue: Queue):
    queue.database.write(queue.sql.append, [message("a")], None)
    clock = "select abs(stored_at - 1000000 * strftime('%s', 'now')) from {q}messages"
    ((drift,),) = queue.rows(clock)
    assert drift < 10 * SECOND
    rows, *_ = queue.database.write(queue.sql.claim, queue.group, [], 1, 30 * SECOND, 0, None)
    assert [row.id for row in rows] == ["a"]
