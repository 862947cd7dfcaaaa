"""Locks that serialise writers where the database cannot: their contract, and one for a process.

Lockers that several processes share are in `queue_lib.lockers`.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from queue_lib.errors import InvalidNameError, StoreUnavailableError, shown
from queue_lib.forks import follow_forks

__all__ = [
    "DEFAULT_LOCK_TABLE",
    "MAX_KEY_LENGTH",
    "DistributedLocker",
    "LockHandle",
    "LossSignal",
    "ProcessLocker",
    "Turns",
    "check_key",
    "still_held",
]

DEFAULT_LOCK_TABLE = "queue_locks"
"""The table of a locker that keeps its locks in a database."""

MAX_KEY_LENGTH = 1_000
"""Longest key of a lock, in bytes of UTF-8: lockers keep it in an indexed column."""


@runtime_checkable
class LockHandle(Protocol):
    """A lock that is held. Leaving it as a context manager releases it. Thread-safe."""

    @property
    def fence(self) -> int:
        """One more than at the key's acquisition before: a write with a lower one is late.

        So somebody who finds it only one above its own last one knows that nobody else held the
        lock in between. It may skip numbers, but only when an acquisition failed half-way.
        """
        ...

    @property
    def lost(self) -> threading.Event:
        """Set when the lock may have passed to somebody else: stop writing.

        It looks at the clock when it is asked, so it is right at once in a process that was
        stopped. A lock once lost stays lost.
        """
        ...

    @property
    def held_until(self) -> float:
        """When the lock may pass on unless it is renewed, on `time.monotonic`'s clock.

        Writes must have returned by then; of those that have not, nobody knows who came first.
        """
        ...

    def is_held(self) -> bool:
        """Say whether the lock is neither released nor lost."""
        ...

    def release(self) -> None:
        """Give the lock back. Idempotent; harmless after a loss. Raises nothing.

        What cannot be given back, because the locker cannot be reached, ends by itself.
        """
        ...

    def __enter__(self) -> Self:
        """Return the handle."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lock."""
        ...


@runtime_checkable
class DistributedLocker(Protocol):
    """Mutual exclusion by key between all instances that share a queue. Thread-safe.

    A lock belongs to its handle, not to a thread or a process: who asks for a key again, waits.
    A forked child has none of its parent's locks.
    """

    def acquire(self, key: str, timeout: timedelta) -> LockHandle:
        """Wait up to `timeout` for the lock of `key`; without one to wait, try once.

        Raises:
            StoreUnavailableError: somebody else held it all that time, or the locker could not
                be reached.
            InvalidNameError: the key is longer than `MAX_KEY_LENGTH`, or cannot be stored.
        """
        ...


class LossSignal(threading.Event):
    """An event that is also set once an instant on the monotonic clock has passed.

    Nobody has to be awake to set it then. It stays set: `postpone` comes too late, or in time.
    """

    def __init__(self, until: float) -> None:
        super().__init__()
        self.until = until
        self._has_passed = False

    def is_set(self) -> bool:
        """Say whether it was set or its instant has passed."""
        if time.monotonic() >= self.until:
            self._has_passed = True
        return self._has_passed or super().is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is set or `timeout` seconds passed; say which."""
        give_up = math.inf if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            left = min(self.until, give_up) - time.monotonic()
            super().wait(min(max(left, 0.0), threading.TIMEOUT_MAX))
            if time.monotonic() >= give_up:
                return self.is_set()
        return True

    def postpone(self, until: float) -> bool:
        """Move the instant, unless the signal is set; say whether it was not."""
        if self.is_set():
            return False
        self.until = until
        return True


class Turns:
    """First come, first served, for each key on its own. Thread-safe.

    `threading.Lock` knows no order: whoever releases it and asks again mostly gets it again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str, deque[threading.Event]] = {}  # guarded by _lock

    def take(self, key: str, seconds: float) -> bool:
        """Wait for the turn, until `give`; `False` if it did not come in time."""
        turn = threading.Event()
        with self._lock:
            line = self._lines.setdefault(key, deque())
            line.append(turn)
            if line[0] is turn:
                return True
        try:
            return turn.wait(min(seconds, threading.TIMEOUT_MAX)) or not self._leave(key, turn)
        except BaseException:  # a signal handler raised
            if not self._leave(key, turn):
                self.give(key)
            raise

    def give(self, key: str) -> None:
        """End a turn: the next one's begins."""
        with self._lock:
            line = self._lines[key]
            line.popleft()
            if line:
                line[0].set()
            else:
                del self._lines[key]

    def _leave(self, key: str, turn: threading.Event) -> bool:
        """Leave the line; `False` if the turn came at the last moment."""
        with self._lock:
            if turn.is_set():
                return False
            self._lines[key].remove(turn)
            return True


class ProcessLocker:
    """A locker for one process: for tests and single-instance deployments.

    Its fences start again with the process, so nothing that outlives the process may rely on
    them.
    """

    def __init__(self) -> None:
        self._begin_anew()
        follow_forks(self)

    def _begin_anew(self) -> None:
        self._turns = Turns()
        self._releasing = threading.Lock()
        self._handles: dict[str, _ProcessHandle] = {}  # whose turn it is adds; see _releasing
        self._fences: dict[str, int] = {}  # whose turn it is writes

    def acquire(self, key: str, timeout: timedelta) -> LockHandle:
        """See `DistributedLocker.acquire`."""
        check_key(key)
        if not self._turns.take(key, timeout.total_seconds()):
            raise still_held(key, timeout)
        fence = self._fences[key] = self._fences.get(key, 0) + 1
        handle = self._handles[key] = _ProcessHandle(self, key, fence)
        return handle

    def before_fork(self) -> None:
        """Do nothing: a child begins anew."""

    def after_fork(self, *, child: bool) -> None:
        """Forget the parent's locks."""
        if child:
            for handle in self._handles.values():
                handle.lost.until = -math.inf
            self._begin_anew()

    def _holds(self, handle: _ProcessHandle) -> bool:
        return self._handles.get(handle.key) is handle

    def _release(self, handle: _ProcessHandle) -> None:
        with self._releasing:
            if not self._holds(handle):
                return
            del self._handles[handle.key]
        self._turns.give(handle.key)


@dataclass(frozen=True, slots=True, eq=False)
class _ProcessHandle:
    locker: ProcessLocker
    key: str
    fence: int
    lost: LossSignal = field(default_factory=lambda: LossSignal(math.inf))

    @property
    def held_until(self) -> float:
        return self.lost.until

    def is_held(self) -> bool:
        return self.locker._holds(self)

    def release(self) -> None:
        self.locker._release(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def check_key(key: object) -> None:
    """Check the key of a lock: any text that every locker can store.

    Raises:
        InvalidNameError: it is not a string, too long, not encodable, or holds a NUL.
    """
    try:
        fits = isinstance(key, str) and len(key.encode()) <= MAX_KEY_LENGTH and "\0" not in key
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise InvalidNameError(
            f"lock {shown(key)}: must be text of at most {MAX_KEY_LENGTH} bytes, without NUL"
        )


def still_held(key: str, timeout: timedelta) -> StoreUnavailableError:
    """Return what to raise when the lock of `key` did not come free."""
    return StoreUnavailableError(f"lock {key!r}: still held after {timeout}")
