"""Leases on a storage that does what a test wants: when locks are kept, lost, and passed on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from queue_lib import InvalidOptionsError, QueueClosedError, StoreError, StoreUnavailableError
from queue_lib.lockers.lease import Lease, LeaseLocker, Turn

AT_ONCE = timedelta(0)
LONG = timedelta(seconds=20)
TTL = 0.3


class Fake:
    """Leases in memory, without a clock: a holder loses one when the test says so."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}
        self.fences: dict[str, int] = {}
        self.renewals: list[list[Lease]] = []
        self.given_back: list[Lease] = []
        self.error: Exception | None = None
        self.turn: Turn | None = None
        self.before_answer: Callable[[], object] = lambda: None
        self.is_closed = False

    def _answer(self) -> None:
        self.before_answer()
        if self.error is not None:
            raise self.error

    def take(self, lease: Lease, ttl: timedelta) -> int | None:
        self._answer()
        if self.owners.setdefault(lease.key, lease.owner) != lease.owner:
            return None
        self.fences[lease.key] = self.fences.get(lease.key, 0) + 1
        return self.fences[lease.key]

    def ask(self, lease: Lease, waited: timedelta) -> Turn:
        self._answer()
        assert timedelta(0) < waited < LONG
        return self.turn or (Turn.NEXT if lease.key in self.owners else Turn.NOW)

    def renew(self, leases: Sequence[Lease], ttl: timedelta) -> set[str]:
        self.renewals.append(list(leases))
        self._answer()
        return {lease.owner for lease in leases if self.owners.get(lease.key) == lease.owner}

    def give_back(self, lease: Lease) -> None:
        self.given_back.append(lease)
        self._answer()
        if self.owners.get(lease.key) == lease.owner:
            del self.owners[lease.key]

    def before_fork(self) -> None:
        pass

    def after_fork(self, *, child: bool) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def leases() -> Fake:
    return Fake()


@pytest.fixture
def locker(leases: Fake) -> Iterator[LeaseLocker]:
    with LeaseLocker(leases, TTL) as locker:
        yield locker


def _eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG.total_seconds()
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_all_locks_are_renewed_in_one_call_by_one_thread(leases: Fake, locker: LeaseLocker):
    handles = [locker.acquire(f"k{number}", AT_ONCE) for number in range(50)]
    before = handles[0].held_until
    _eventually(lambda: any(len(renewal) == 50 for renewal in leases.renewals))
    _eventually(lambda: handles[0].held_until > before)
    assert [thread.name for thread in threading.enumerate()].count("queue-locks") == 1


def test_a_refused_renewal_loses_that_lock_and_no_other(
    leases: Fake, locker: LeaseLocker, caplog: pytest.LogCaptureFixture
):
    kept, lost = locker.acquire("kept", AT_ONCE), locker.acquire("lost", AT_ONCE)
    leases.owners["lost"] = "somebody else"
    assert lost.lost.wait(TTL)  # told by the renewal, before the lease's own end
    assert lost.held_until > time.monotonic()
    assert not lost.is_held()
    assert kept.is_held()
    _eventually(lambda: "lock 'lost' (fence 1) is lost" in caplog.text)
    lost.release()
    assert leases.owners["lost"] == "somebody else"


def test_a_lost_lock_lets_a_waiting_thread_ask_although_nobody_released_it(
    leases: Fake, locker: LeaseLocker
):
    locker.acquire("k", AT_ONCE)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(locker.acquire, "k", LONG)
        leases.owners["k"] = "somebody else"
        _eventually(lambda: leases.renewals)
        del leases.owners["k"]
        assert waiting.result(LONG.total_seconds()).fence == 2


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), RuntimeError("a bug")])
def test_an_outage_loses_nothing_that_is_over_in_time(
    leases: Fake, locker: LeaseLocker, error: Exception, caplog: pytest.LogCaptureFixture
):
    handle = locker.acquire("k", AT_ONCE)
    leases.error = error
    _eventually(lambda: len(leases.renewals) >= 2)  # sooner than a third of the lease again
    leases.error = None
    before = handle.held_until
    _eventually(lambda: handle.held_until > before)
    assert handle.is_held()
    assert f"could not be renewed: {error}" in caplog.text
    assert ("Traceback" in caplog.text) is isinstance(error, RuntimeError)


def test_an_outage_that_lasts_loses_the_lock_at_its_end(leases: Fake, locker: LeaseLocker):
    handle = locker.acquire("k", AT_ONCE)
    leases.error = StoreUnavailableError("away")
    began = time.monotonic()
    assert handle.lost.wait()
    assert began + TTL / 2 < time.monotonic() < began + TTL + 2
    leases.error = None
    assert locker.acquire("k", LONG).fence == 2  # it is ours, but too late: given back


def test_a_hanging_storage_does_not_hide_the_loss(leases: Fake, locker: LeaseLocker):
    handle = locker.acquire("k", AT_ONCE)
    hanging = threading.Event()
    leases.before_answer = lambda: hanging.wait(20)
    assert handle.lost.wait(TTL + 5)
    assert not handle.is_held()
    hanging.set()


def test_an_answer_that_takes_longer_than_the_lease_is_none(leases: Fake, locker: LeaseLocker):
    slow = iter([lambda: time.sleep(TTL * 1.1)])
    leases.before_answer = lambda: next(slow, lambda: None)()
    handle = locker.acquire("k", LONG)
    assert handle.is_held()
    assert handle.fence == 2
    assert len(leases.given_back) == 1


def test_faults_that_pass_are_tried_again_until_the_deadline(leases: Fake, locker: LeaseLocker):
    leases.error = StoreUnavailableError("away")
    with pytest.raises(StoreUnavailableError, match=r"^lock 'k': away$") as caught:
        locker.acquire("k", timedelta(seconds=0.1))
    assert caught.value.__cause__ is leases.error
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(locker.acquire, "k", LONG)
        leases.error = None
        assert waiting.result(LONG.total_seconds()).fence == 1


def test_other_faults_are_not(leases: Fake, locker: LeaseLocker):
    leases.error = StoreError("no such table")
    with pytest.raises(StoreError, match="no such table"):
        locker.acquire("k", LONG)
    leases.error = None
    assert locker.acquire("k", AT_ONCE).fence == 1  # its turn was given on


def test_who_stops_waiting_leaves_the_line(leases: Fake, locker: LeaseLocker):
    leases.owners["k"] = "somebody else"
    with pytest.raises(StoreUnavailableError, match="still held"):
        locker.acquire("k", timedelta(seconds=0.05))
    assert [lease.key for lease in leases.given_back] == ["k"]
    with pytest.raises(StoreUnavailableError):
        locker.acquire("k", AT_ONCE)
    leases.turn = Turn.LATER
    with pytest.raises(StoreUnavailableError):
        locker.acquire("k", timedelta(seconds=0.05))
    assert len(leases.given_back) == 1  # those were not in it


def test_a_release_that_cannot_be_told_is_left_to_the_leases_end(
    leases: Fake, locker: LeaseLocker, caplog: pytest.LogCaptureFixture
):
    handle = locker.acquire("k", AT_ONCE)
    leases.error = StoreUnavailableError("away")
    handle.release()
    assert len(leases.given_back) > 1
    assert "lock 'k' is left to its end: away" in caplog.text


def test_closing_gives_back_what_is_held_and_refuses_what_comes(leases: Fake, locker: LeaseLocker):
    handles = [locker.acquire(key, AT_ONCE) for key in ("a", "b")]
    leases.owners["c"] = "somebody else"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(locker.acquire, "c", LONG)
        locker.close()
        with pytest.raises(QueueClosedError):
            waiting.result(LONG.total_seconds())
    assert all(handle.lost.is_set() for handle in handles)
    assert leases.owners == {"c": "somebody else"}
    assert leases.is_closed
    handles[0].release()
    locker.close()
    with pytest.raises(QueueClosedError):
        locker.acquire("a", LONG)


def test_closing_without_the_storage_does_not_try_for_every_lock(
    leases: Fake, locker: LeaseLocker, caplog: pytest.LogCaptureFixture
):
    for number in range(20):
        locker.acquire(f"k{number}", AT_ONCE)
    leases.error = StoreUnavailableError("away")
    began = time.monotonic()
    locker.close()
    assert time.monotonic() - began < 5
    assert caplog.text.count("is left to its end") == 1
    leases.error = None


def test_a_time_to_live_must_leave_time_for_renewals():
    for bad in (0, 0.05, timedelta(milliseconds=99), float("nan"), "10s"):
        with pytest.raises(InvalidOptionsError, match=r"^ttl "):
            LeaseLocker(Fake(), bad)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "queue_lib")
