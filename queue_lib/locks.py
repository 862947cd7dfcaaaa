"""Locks that serialise writers where the database cannot."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol, runtime_checkable

from queue_lib.errors import StoreUnavailableError

__all__ = ["DistributedLocker", "LockHandle", "ProcessLocker"]


@runtime_checkable
class LockHandle(Protocol):
    """A lock that is held."""

    @property
    def fence(self) -> int:
        """Rises with each acquisition of the key: a write with a lower one is from the past."""
        ...

    @property
    def lost(self) -> threading.Event:
        """Set when the lock may have passed to somebody else; stop writing."""
        ...

    def release(self) -> None:
        """Give the lock back. Idempotent; harmless after a loss."""
        ...


@runtime_checkable
class DistributedLocker(Protocol):
    """Mutual exclusion by key between all instances that share a queue. Thread-safe."""

    def acquire(self, key: str, timeout: timedelta) -> LockHandle:
        """Wait up to `timeout` for the lock of `key`.

        Raises:
            StoreUnavailableError: somebody else held it all that time.
        """
        ...


class ProcessLocker:
    """A locker for one process: for tests and single-instance deployments.

    Its fences start again with the process, so nothing that outlives the process may rely on
    them.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holders: dict[str, _ProcessHandle] = {}  # guarded by _changed
        self._fences: dict[str, int] = defaultdict(int)  # guarded by _changed

    def acquire(self, key: str, timeout: timedelta) -> LockHandle:
        """See `DistributedLocker.acquire`."""
        seconds = min(timeout.total_seconds(), threading.TIMEOUT_MAX)
        with self._changed:
            if not self._changed.wait_for(lambda: key not in self._holders, seconds):
                raise StoreUnavailableError(f"lock {key!r}: still held after {timeout}")
            self._fences[key] += 1
            handle = _ProcessHandle(self, key, self._fences[key])
            self._holders[key] = handle
            return handle

    def _release(self, handle: _ProcessHandle) -> None:
        with self._changed:
            if self._holders.get(handle.key) is handle:
                del self._holders[handle.key]
                self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class _ProcessHandle:
    locker: ProcessLocker
    key: str
    fence: int
    lost: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        self.locker._release(self)
