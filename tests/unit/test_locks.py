"""The locker for one process: exclusion, fences, and releases that come too late."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from queue_lib import DistributedLocker, LockHandle, ProcessLocker, StoreUnavailableError

AT_ONCE = timedelta(0)
LONG = timedelta(seconds=10)


def test_it_is_a_locker_and_gives_handles() -> None:
    locker = ProcessLocker()
    assert isinstance(locker, DistributedLocker)
    handle = locker.acquire("orders", AT_ONCE)
    assert isinstance(handle, LockHandle)
    assert not handle.lost.is_set()


def test_one_of_eight_threads_at_a_time_and_every_fence_above_the_last() -> None:
    locker, start = ProcessLocker(), threading.Barrier(8)
    inside: list[int] = []  # who is in the critical section
    fences: list[int] = []

    def work(worker: int) -> None:
        start.wait(LONG.total_seconds())
        for _ in range(50):
            handle = locker.acquire("orders", LONG)
            inside.append(worker)
            fences.append(handle.fence)
            assert inside == [worker]
            inside.remove(worker)
            handle.release()

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work, worker) for worker in range(8)]:
            future.result(LONG.total_seconds())
    assert fences == list(range(1, 401))


def test_a_release_lets_a_waiting_thread_in() -> None:
    locker = ProcessLocker()
    first = locker.acquire("orders", AT_ONCE)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(locker.acquire, "orders", LONG)
        first.release()
        second = waiting.result(LONG.total_seconds())
    assert second.fence > first.fence


@pytest.mark.parametrize("timeout", [AT_ONCE, timedelta(milliseconds=5), timedelta(seconds=-5)])
def test_a_held_lock_is_refused_after_the_timeout(timeout: timedelta) -> None:
    locker = ProcessLocker()
    held = locker.acquire("orders", AT_ONCE)
    with pytest.raises(StoreUnavailableError, match=r"^lock 'orders': still held"):
        locker.acquire("orders", timeout)
    held.release()
    assert locker.acquire("orders", timeout).fence == held.fence + 1


def test_the_longest_of_timeouts_is_no_overflow() -> None:
    locker = ProcessLocker()
    held = locker.acquire("orders", timedelta.max)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(locker.acquire, "orders", timedelta.max)
        held.release()
        assert waiting.result(LONG.total_seconds()).fence == 2


def test_keys_do_not_know_of_each_other() -> None:
    locker = ProcessLocker()
    handles = [locker.acquire(key, AT_ONCE) for key in ("orders", "Orders", "orders ", "")]
    assert [handle.fence for handle in handles] == [1, 1, 1, 1]


def test_a_release_is_idempotent_and_harmless_after_a_handover() -> None:
    locker = ProcessLocker()
    first = locker.acquire("orders", AT_ONCE)
    first.release()
    first.release()
    second = locker.acquire("orders", AT_ONCE)
    first.release()
    with pytest.raises(StoreUnavailableError):
        locker.acquire("orders", AT_ONCE)
    second.release()
    locker.acquire("orders", AT_ONCE)
