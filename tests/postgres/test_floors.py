"""Claims while no vacuum removes what is dead: they begin where the living ones do."""

from __future__ import annotations

from datetime import timedelta

import pytest

from queue_lib.stores.sql.dialect import Borrowed, ClaimRow
from queue_lib.stores.sql.postgres import floors
from queue_lib.stores.sql.postgres.floors import NO_FLOOR, Floor, Floors
from queue_lib.testing.clock import ManualClock
from tests.postgres.lab import Lab, ids, message

SECOND = 1_000_000
BLOCKS = "SELECT pg_stat_get_xact_blocks_fetched('{q}ready'::regclass)"


def row(seq: int, priority: int = 0) -> ClaimRow:
    return ClaimRow(seq, "", 0, None, None, None, b"", None, priority, 0, 0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_there_are_hints_only_after_a_full_and_slow_claim() -> None:
    clock = Clock()
    known = Floors(clock)
    known.learn(1, NO_FLOOR, [row(1)], 4_999)
    known.learn(1, NO_FLOOR, [], 60_000)
    assert known.of(1) is NO_FLOOR
    known.learn(1, NO_FLOOR, [row(1), row(7, 3)], 5_000)
    assert known.of(1) == Floor(3, 7, 105_000)
    assert known.of(2) is NO_FLOOR


def test_hints_move_on_and_end_after_a_second() -> None:
    clock = Clock()
    known = Floors(clock)
    known.learn(1, NO_FLOOR, [row(7)], 20_000)
    clock.now += 0.5
    hint = known.of(1)
    known.learn(1, hint, [row(9)], 100)  # fast, thanks to the hint
    assert known.of(1) == Floor(0, 9, 620_000)
    clock.now += 0.5
    assert known.of(1) is NO_FLOOR  # all are looked at
    known.learn(1, NO_FLOOR, [row(11)], 4_000)  # and that was fast again
    assert known.of(1) is NO_FLOOR


def test_less_than_asked_for_ends_the_hints() -> None:
    known = Floors(Clock())
    known.learn(1, NO_FLOOR, [row(7)], 20_000)
    known.learn(1, known.of(1), [], 20_000)
    assert known.of(1) is NO_FLOOR


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every full claim count as a slow one, and hints last for the whole test."""
    monkeypatch.setattr(floors, "_SLOW_MICROSECONDS", 0)
    monkeypatch.setattr(floors, "_LOOK_AT_ALL_SECONDS", 1e6)


@pytest.mark.usefixtures("slow")
def test_what_comes_in_below_the_hint_is_found_when_less_is_found_than_asked_for(lab: Lab) -> None:
    store = lab.consuming()
    store.append([message(f"m{number}", priority=1) for number in range(6)])
    first = lab.claim(store, 2)
    assert ids(first) == ["m0", "m1"]
    store.release(first)
    store.append([message("urgent", priority=-1)])
    assert ids(lab.claim(store, 2)) == ["m1", "m2"]
    assert ids(lab.claim(store, 6)) == ["urgent", "m0", "m3", "m4", "m5"]


@pytest.mark.parametrize("age", [60 * SECOND, 5 * SECOND])
def test_leases_and_timers_that_have_ended_since_all_were_looked_at_are_found(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, age: int
) -> None:
    clock = ManualClock()
    store = lab.consuming(clock=clock)
    store.append([message(f"m{number}") for number in range(8)])
    lab.claim(store, 2)  # until 30 s
    assert store.retry(lab.claim(store, 1)[0], timedelta(seconds=40), "later")
    clock.advance(41)
    with lab.transaction() as claimer:
        monkeypatch.setattr(lab.sql._floors, "of", lambda _: Floor(0, 4, age))
        group = lab.group_id()
        answer = lab.sql.claim(Borrowed(claimer), group, [], 4, 30 * SECOND, 0, clock())
    found = ["m0", "m1", "m2", "m3"] if age == 60 * SECOND else ["m2", "m3", "m4", "m5"]
    assert [row.id for row in answer.rows] == found


@pytest.mark.usefixtures("slow")
def test_capped_claims_have_no_hints(lab: Lab) -> None:
    store = lab.consuming()
    store.append([message(f"m{number}", priority=1) for number in range(6)])
    store.release(lab.claim(store, 2, cap=4))
    assert ids(lab.claim(store, 2, cap=4)) == ["m0", "m1"]


def test_dead_rows_in_front_are_not_walked_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks read by a claim with hints, behind 20,000 rows that an open snapshot keeps."""
    store = lab.consuming()
    with lab.transaction("REPEATABLE READ") as old:
        old.exec_driver_sql("SELECT 1")
        store.append([message(f"m{number}") for number in range(20_400)])
        asked, place = lab.tables.qualify(BLOCKS), 0
        for _ in range(20):
            claims = lab.claim(store, 1_000)
            assert len(store.ack(claims)) == 1_000
            place = claims[-1].ref[1]
        with lab.transaction() as claimer:

            def blocks(hint: Floor) -> int:
                before = claimer.exec_driver_sql(asked).scalar_one()
                monkeypatch.setattr(lab.sql._floors, "of", lambda _: hint)
                answer = lab.sql.claim(
                    Borrowed(claimer), lab.group_id(), [], 32, 30 * SECOND, 0, None
                )
                assert len(answer.rows) == 32
                return int(claimer.exec_driver_sql(asked).scalar_one() - before)

            all_of_them, from_the_hint = blocks(NO_FLOOR), blocks(Floor(0, place, SECOND))
        assert from_the_hint * 10 < all_of_them
