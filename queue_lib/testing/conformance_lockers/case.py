"""What every conformance test of a locker stands on: lockers here, and in other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from queue_lib.locks import DistributedLocker, LockHandle
from queue_lib.testing.locker_member import Member

__all__ = ["AT_ONCE", "KEY", "LONG", "SHORT", "LockerCase"]

KEY = "orders"
AT_ONCE = timedelta(0)
LONG = timedelta(seconds=30)
"""Longer than anything here takes; as a time to live: no lease ends, however slow the machine."""
SHORT = timedelta(seconds=1)
"""The time to live of the locks of holders that die or are stopped."""


class LockerCase:
    """The base of the conformance classes. Their subclass, one for each locker, says what to test.

    It overrides the fixture ``new_locker``, and `capabilities`:

    ``processes``  processes share the locker, and a lock ends some time after its holder died
    """

    capabilities: ClassVar[frozenset[str]] = frozenset()

    _new_locker: Callable[..., DistributedLocker]
    _to_close: list[Any]

    @pytest.fixture(name="new_locker")
    def given_new_locker(self) -> Callable[..., DistributedLocker]:
        """Return what makes a locker; all that it makes in one test share their locks."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _bind(self, new_locker: Callable[..., DistributedLocker]) -> Iterator[None]:
        self._new_locker, self._to_close = new_locker, []
        yield
        for opened in reversed(self._to_close):
            getattr(opened, "close", lambda: None)()

    # -- steps -----------------------------------------------------------------------------

    def locker(self, ttl: timedelta = LONG) -> DistributedLocker:
        """Make a locker in this process. The test closes it."""
        options = {"ttl": ttl} if "processes" in self.capabilities else {}
        locker = self._new_locker(**options)
        self._to_close.append(locker)
        return locker

    def member(self, ttl: timedelta = LONG) -> Member:
        """Start a process with a locker of its own. The test ends it."""
        return self.members(1, ttl)[0]

    def members(self, count: int, ttl: timedelta = LONG) -> list[Member]:
        """Start several processes, side by side."""
        members = [Member(self._new_locker, ttl) for _ in range(count)]
        self._to_close += members
        for member in members:
            member.hear()  # that it is ready
        return members

    @staticmethod
    def take(locker: DistributedLocker, key: str = KEY) -> LockHandle:
        """Acquire a lock that is free, or soon will be."""
        return locker.acquire(key, LONG)
