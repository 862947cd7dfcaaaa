"""Holders that live, die, and are stopped: when a lock passes on, and who knows about it."""

from __future__ import annotations

import time

import pytest

from queue_lib.errors import StoreUnavailableError
from queue_lib.testing.conformance.case import every_test_requires
from queue_lib.testing.conformance_lockers.case import AT_ONCE, KEY, LONG, SHORT, LockerCase
from queue_lib.testing.conformance_lockers.threads import SLACK

__all__ = ["LeaseConformance"]

TTL = SHORT.total_seconds()
COARSENESS = 0.005
"""Clocks of lockers may count whole milliseconds."""


@every_test_requires("processes")
class LeaseConformance(LockerCase):
    """Locks whose holder does not give them back, or not in time."""

    @pytest.mark.slow
    def test_a_lock_is_kept_as_long_as_its_holder_lives(self) -> None:
        handles = [self.locker(SHORT).acquire(KEY, AT_ONCE)]
        with pytest.raises(StoreUnavailableError):
            self.locker(SHORT).acquire(KEY, 2 * SHORT)
        assert handles[0].is_held()
        assert handles[0].held_until > time.monotonic()

    @pytest.mark.slow
    def test_two_hundred_locks_are_kept_at_once(self) -> None:
        ttl = 3 * SHORT
        locker = self.locker(ttl)
        handles = [locker.acquire(f"key-{number}", LONG) for number in range(200)]
        assert not handles[0].lost.wait(ttl.total_seconds() * 1.1)
        assert all(handle.is_held() for handle in handles)
        other = self.locker(ttl)
        for number in (0, 99, 199):
            with pytest.raises(StoreUnavailableError):
                other.acquire(f"key-{number}", AT_ONCE)

    @pytest.mark.slow
    def test_the_lock_of_a_killed_process_passes_on_within_its_time_and_not_before(self) -> None:
        holder = self.member(SHORT)
        asked = time.monotonic()
        fence = holder.ask("acquire", KEY, 10)
        holder.kill()
        killed = time.monotonic()
        second = self.take(self.locker(SHORT))
        assert asked + TTL - COARSENESS <= time.monotonic() <= killed + TTL + SLACK
        assert second.fence == fence + 1

    @pytest.mark.slow
    def test_a_stopped_holder_knows_that_it_lost_and_can_harm_nobody(self) -> None:
        holder = self.member(SHORT)
        fence = holder.ask("acquire", KEY, 10)
        holder.stop()
        second = self.take(self.locker())
        holder.go_on()
        assert holder.ask("look") == {"held": False, "lost": True}
        holder.ask("release")
        assert second.is_held()
        assert second.fence == fence + 1
        assert holder.ask("acquire", KEY, 0) is None
        second.release()
        assert holder.ask("acquire", KEY, 10) == fence + 2

    @pytest.mark.slow
    def test_a_holder_stopped_past_its_time_has_lost_even_if_nobody_came(self) -> None:
        holder = self.member(SHORT)
        fence = holder.ask("acquire", KEY, 10)
        holder.stop()
        time.sleep(TTL * 1.2)
        holder.go_on()
        assert holder.ask("look") == {"held": False, "lost": True}
        assert self.take(self.locker()).fence == fence + 1
