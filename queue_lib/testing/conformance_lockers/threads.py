"""Locks between the threads of one process."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from queue_lib.errors import InvalidNameError, StoreUnavailableError
from queue_lib.locks import MAX_KEY_LENGTH, DistributedLocker, LockHandle
from queue_lib.testing.conformance.case import DEADLINE, together
from queue_lib.testing.conformance_lockers.case import AT_ONCE, KEY, LONG, LockerCase

__all__ = ["ThreadConformance"]

SLACK = 2.0
"""Seconds that a wait may take longer than it should: machines stall."""


class ThreadConformance(LockerCase):
    """What holds for every locker, also for one of a single process."""

    def test_it_is_a_locker_and_gives_handles(self) -> None:
        locker = self.locker()
        assert isinstance(locker, DistributedLocker)
        handle = locker.acquire(KEY, AT_ONCE)
        assert isinstance(handle, LockHandle)
        assert type(handle.fence) is int
        assert handle.is_held()
        assert not handle.lost.is_set()
        assert handle.held_until > time.monotonic()
        handle.release()
        assert not handle.is_held()

    def test_one_at_a_time_and_every_fence_is_one_more(self) -> None:
        locker = self.locker()
        inside: list[int] = []
        fences: list[int] = []

        def work(number: int) -> None:
            for _ in range(10):
                with locker.acquire(KEY, LONG) as handle:
                    inside.append(number)
                    fences.append(handle.fence)
                    assert inside == [number]
                    inside.remove(number)

        together(8, work)
        assert fences == list(range(fences[0], fences[0] + 80))

    def test_a_lock_does_not_belong_to_its_thread(self) -> None:
        locker = self.locker()
        handle = self.take(locker)
        with pytest.raises(StoreUnavailableError):
            locker.acquire(KEY, AT_ONCE)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(handle.release).result(DEADLINE)
        assert locker.acquire(KEY, AT_ONCE).fence == handle.fence + 1

    def test_a_release_lets_a_waiting_thread_in(self) -> None:
        locker = self.locker()
        first = self.take(locker)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(locker.acquire, KEY, LONG)
            first.release()
            assert waiting.result(DEADLINE).fence == first.fence + 1

    @pytest.mark.parametrize("seconds", [0.3, 0.005, 0, -5])
    def test_a_held_lock_is_refused_in_time(self, seconds: float) -> None:
        locker = self.locker()
        held = self.take(locker)
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="still held"):
            locker.acquire(KEY, timedelta(seconds=seconds))
        assert seconds <= time.monotonic() - began <= max(seconds, 0) + SLACK
        held.release()
        assert locker.acquire(KEY, AT_ONCE).fence == held.fence + 1

    def test_the_longest_of_timeouts_is_no_overflow(self) -> None:
        locker = self.locker()
        first = locker.acquire(KEY, timedelta.max)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(locker.acquire, KEY, timedelta.max)
            first.release()
            assert waiting.result(DEADLINE).fence == first.fence + 1

    def test_a_release_is_idempotent_and_harmless_afterwards(self) -> None:
        locker = self.locker()
        first = self.take(locker)
        first.release()
        first.release()
        second = locker.acquire(KEY, AT_ONCE)
        first.release()
        with pytest.raises(StoreUnavailableError):
            locker.acquire(KEY, AT_ONCE)
        assert second.is_held()

    def test_an_error_releases_the_lock(self) -> None:
        locker = self.locker()
        with pytest.raises(ZeroDivisionError), self.take(locker):
            raise ZeroDivisionError
        assert locker.acquire(KEY, AT_ONCE).is_held()

    def test_keys_are_told_apart_byte_by_byte(self) -> None:
        locker = self.locker()
        keys = [
            "", KEY, KEY.upper(), f"{KEY} ", f" {KEY}", f"{KEY}\n", f"g:{'t' * 200}:{'g' * 200}",
            f"g:{'t' * 200}:{'h' * 200}", "é", "e\u0301", "%s %(x)s %%", "'\"\\'", "{}", "}{",
            "*?[a]", "\N{SNOWMAN}" * (MAX_KEY_LENGTH // 3),
        ]  # fmt: skip
        handles = [locker.acquire(key, AT_ONCE) for key in keys]
        assert {handle.fence for handle in handles} == {1}
        for key in keys:
            with pytest.raises(StoreUnavailableError):
                locker.acquire(key, AT_ONCE)
        for handle in handles:
            handle.release()
        assert {locker.acquire(key, AT_ONCE).fence for key in keys} == {2}

    @pytest.mark.parametrize("key", ["a\0b", "\ud800", "x" * (MAX_KEY_LENGTH + 1), b"x", None])
    def test_what_is_no_key_is_refused(self, key: str) -> None:
        with pytest.raises(InvalidNameError):
            self.locker().acquire(key, AT_ONCE)

    @pytest.mark.slow
    def test_no_thread_starves(self) -> None:
        locker = self.locker()
        end = time.monotonic() + 1

        def contend(_: int) -> tuple[int, float]:
            count, longest = 0, 0.0
            while (asked := time.monotonic()) < end:
                with locker.acquire(KEY, LONG):
                    longest = max(longest, time.monotonic() - asked)
                    count += 1
                    time.sleep(0.005)
            return count, longest

        counts, waits = zip(*together(4, contend), strict=True)
        assert min(counts) >= max(counts) / 2
        assert max(waits) < 1
