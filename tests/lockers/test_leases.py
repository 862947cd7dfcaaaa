"""What every storage of leases decides: who takes, who is next in line, and who holds what."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from queue_lib.lockers.lease import PATIENCE, RESERVATION, Lease, Leases, Turn
from queue_lib.lockers.redis import RedisLocker
from queue_lib.lockers.sql import SQLLocker

A, B, C = (Lease("k", owner) for owner in ("host/1/a", "host/2/b", "host/3/c"))
TTL = timedelta(seconds=30)
MOMENT = timedelta(milliseconds=1)


@pytest.fixture(params=["sqlite", "postgres", "redis", "keeper_map"])
def leases(request: pytest.FixtureRequest) -> Iterator[Leases]:
    locker: SQLLocker
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        prefix = request.getfixturevalue("redis_prefix")
        locker = RedisLocker(server.url(), prefix=prefix)  # type: ignore[assignment]
    elif request.param == "keeper_map":
        server = request.getfixturevalue("clickhouse_server")
        from queue_lib.lockers.keeper_map import KeeperMapLocker

        database = request.getfixturevalue("clickhouse_database")
        locker = KeeperMapLocker(server.url(database))  # type: ignore[assignment]
    else:
        locker = SQLLocker(request.getfixturevalue(f"{request.param}_url"))
    with locker:
        yield locker._leases


def _pass(duration: timedelta) -> None:
    time.sleep(duration.total_seconds() + 0.005)  # clocks may count milliseconds


def test_a_held_lock_is_taken_by_nobody_but_its_owner(leases: Leases):
    assert leases.take(A, TTL) == 1
    assert leases.take(B, TTL) is None
    assert leases.take(A, TTL) == 2  # the first answer was lost
    assert leases.ask(B, TTL) is Turn.NEXT
    _pass(PATIENCE)
    assert leases.ask(A, MOMENT) is Turn.NOW
    assert leases.take(A, TTL) == 3
    leases.give_back(B)
    assert leases.take(B, TTL) is None
    leases.give_back(A)
    leases.give_back(A)
    assert leases.take(B, TTL) == 4


def test_a_lease_ends_by_itself_and_is_renewed_only_for_who_has_it(leases: Leases):
    assert leases.take(A, MOMENT) == 1
    _pass(MOMENT)
    assert leases.renew([A], MOMENT) == {A.owner}  # nobody came: it is still his
    _pass(MOMENT)
    assert leases.take(B, TTL) == 2
    other = Lease("other", A.owner)
    assert leases.take(other, TTL) == 1
    assert leases.renew([A, B, other, Lease("unknown", "x")], TTL) == {A.owner, B.owner}
    leases.give_back(A)
    assert leases.take(C, TTL) is None
    assert leases.renew([A], TTL) == set()
    assert leases.renew([], TTL) == set()


def test_others_may_come_first_for_a_while_and_then_not_again(leases: Leases):
    assert leases.ask(B, MOMENT) is Turn.NOW
    leases.take(A, TTL)
    assert leases.ask(B, MOMENT) is Turn.NEXT
    began = time.monotonic()
    fence = 1
    while time.monotonic() - began < PATIENCE.total_seconds() + 0.1:
        leases.give_back(A)
        taken = leases.take(A, TTL)
        if taken is None:
            break
        fence += 1
        assert taken == fence
        assert leases.ask(B, MOMENT) is Turn.NEXT
    else:
        pytest.fail("the one who holds the lock always comes first")
    assert time.monotonic() - began >= PATIENCE.total_seconds() - 0.005
    assert leases.ask(C, MOMENT) is Turn.LATER
    assert leases.take(C, TTL) is None
    assert leases.ask(B, MOMENT) is Turn.NOW
    assert leases.take(B, TTL) == fence + 1
    assert leases.ask(C, MOMENT) is Turn.NEXT  # B left the line


def test_who_has_waited_for_longer_comes_next(leases: Leases):
    leases.take(A, TTL)
    assert leases.ask(B, timedelta(seconds=2)) is Turn.NEXT
    assert leases.ask(C, timedelta(seconds=1)) is Turn.LATER
    _pass(PATIENCE)
    assert leases.ask(C, timedelta(seconds=3)) is Turn.NEXT
    assert leases.ask(B, timedelta(seconds=2)) is Turn.LATER
    leases.give_back(A)
    assert leases.take(A, TTL) is None  # patience counts from the first that was next
    assert leases.ask(A, MOMENT) is Turn.LATER
    assert leases.take(B, TTL) is None
    assert leases.take(C, TTL) == 2


def test_a_place_in_line_ends_with_who_leaves_it_or_stops_asking(leases: Leases):
    leases.take(A, TTL)
    assert leases.ask(B, TTL) is Turn.NEXT
    assert leases.ask(C, MOMENT) is Turn.LATER
    leases.give_back(B)
    assert leases.ask(C, MOMENT) is Turn.NEXT
    _pass(RESERVATION * 0.7)
    assert leases.ask(C, MOMENT + RESERVATION * 0.7) is Turn.NEXT
    _pass(RESERVATION * 0.7)
    assert leases.ask(B, MOMENT) is Turn.LATER  # it asked in time
    _pass(RESERVATION * 0.7)
    assert leases.ask(B, MOMENT) is Turn.NEXT
