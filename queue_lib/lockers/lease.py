"""Locks that are leases: how they are taken, kept and lost, wherever the leases are stored.

A lock is held until an instant on the clock of the storage, and one thread renews all that this
process holds. A process that dies, is stopped, or loses the network just stops renewing: after
the lease's end the lock is free for others, and its former holder knows from its own monotonic
clock, which it read before it asked for the lease, that it may have lost it.

Who waits. Inside a process, threads wait in line for each key, so that one of them polls. Between
processes the first to find the lock held is *next in line*, until somebody finds out that he has
waited for longer. Once there was a next in line for `PATIENCE`, nobody else may take the lock;
before that a holder that comes back may be first. Who holds a lock several times in a row can
keep what it knows, and a hand-over costs a pause.
"""

from __future__ import annotations

import enum
import itertools
import math
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple, Protocol, Self

from queue_lib.durations import DurationLike, to_timedelta
from queue_lib.errors import QueueClosedError, QueueError, StoreUnavailableError
from queue_lib.forks import follow_forks
from queue_lib.locks import LockHandle, LossSignal, Turns, check_key, still_held
from queue_lib.logs import get_logger

__all__ = ["DEFAULT_TTL", "PATIENCE", "RESERVATION", "Lease", "LeaseLocker", "Leases", "Turn"]

DEFAULT_TTL = timedelta(seconds=10)
"""How long a lock outlives a holder that died."""
PATIENCE = timedelta(milliseconds=100)
"""How long who is next in line lets others take the lock first."""
RESERVATION = timedelta(milliseconds=500)
"""How long a place in line lasts without being asked for again; the next in line may have died."""

_LEAST_TTL = timedelta(milliseconds=100)
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05  # between two looks at a lock that is held
_RELEASE_SECONDS = 1.0  # for which a release tries to reach the storage
_JOIN_SECONDS = 5.0

_log = get_logger("queue_lib.lockers")


class Lease(NamedTuple):
    """One acquisition, as the storage knows it."""

    key: str
    owner: str
    """Never used for two acquisitions."""


class Turn(enum.Enum):
    """What somebody who waits may do."""

    NOW = enum.auto()
    """Try to take the lock."""
    NEXT = enum.auto()
    """Look again soon: nobody else comes first."""
    LATER = enum.auto()
    """Look again some time: somebody else is next."""


class Leases(Protocol):
    """Where leases are stored. Each operation is atomic; the clock is the storage's.

    Every operation raises `StoreUnavailableError` for what may pass, also when it lost a race or
    its answer was lost. Thread-safe.
    """

    def take(self, lease: Lease, ttl: timedelta) -> int | None:
        """Take the lock if it is free and nobody else's turn; return its fence, one higher.

        The fence outlives releases and ends of leases. Taking again what the lease's own owner
        has, because the first answer was lost, is another acquisition.
        """
        ...

    def ask(self, lease: Lease, waited: timedelta) -> Turn:
        """Say whose turn it is; be the next in line if the one who is has waited for less."""
        ...

    def renew(self, leases: Sequence[Lease], ttl: timedelta) -> set[str]:
        """Let leases last for `ttl` from now; return the owners that still hold theirs."""
        ...

    def give_back(self, lease: Lease) -> None:
        """Make the lock free if the owner holds it, and the place in line if it is the next."""
        ...

    def before_fork(self) -> None:
        """See `ForkAware.before_fork`."""
        ...

    def after_fork(self, *, child: bool) -> None:
        """See `ForkAware.after_fork`."""
        ...

    def close(self) -> None:
        """Close what is ours. Idempotent."""
        ...


class LeaseLocker:
    """A `DistributedLocker` on leases. Thread-safe; survives a fork (see `ForkAware`).

    A thread renews the leases, from the first acquisition until `close`.

    Raises:
        InvalidOptionsError: `ttl` is no duration, or too short for leases to be renewed in time.
    """

    def __init__(self, leases: Leases, ttl: DurationLike) -> None:
        self._leases = leases
        self._ttl = to_timedelta("ttl", ttl, least=_LEAST_TTL)
        self._seconds = self._ttl.total_seconds()
        self._begin_anew()
        follow_forks(self)

    def _begin_anew(self) -> None:
        self._closed = threading.Event()
        self._turns = Turns()
        self._lock = threading.Lock()
        self._held: dict[str, _LeaseHandle] = {}  # guarded by _lock
        self._renewer: threading.Thread | None = None  # guarded by _lock
        # Tells those who look into the storage which process it is.
        self._name = f"{socket.gethostname()[:60]}/{os.getpid()}/{secrets.token_hex(6)}"
        self._numbers = itertools.count(1)

    def acquire(self, key: str, timeout: timedelta) -> LockHandle:
        """See `DistributedLocker.acquire`."""
        check_key(key)
        wait = _Wait(key, timeout)
        if not self._turns.take(key, timeout.total_seconds()):
            raise wait.refusal
        lease = Lease(key, f"{self._name}/{next(self._numbers)}")
        try:
            while (handle := self._try(lease, wait)) is None:
                self._closed.wait(wait.pause())
        except BaseException:
            if wait.turn is Turn.NEXT:  # nobody shall wait for who has gone
                self._give_back(lease, 0)
            self._turns.give(key)
            raise
        return handle

    def _try(self, lease: Lease, wait: _Wait) -> _LeaseHandle | None:
        self._check_open()
        try:
            if wait.turn is not Turn.NOW:
                wait.hear(self._leases.ask(lease, wait.waited()))
            if wait.turn is Turn.NOW:
                wait.hear(Turn.LATER)
                return self._take(lease)
        except StoreUnavailableError as error:
            wait.hear(Turn.LATER, error)
        return None

    def _take(self, lease: Lease) -> _LeaseHandle | None:
        asked = time.monotonic()
        fence = self._leases.take(lease, self._ttl)
        if fence is None:
            return None
        handle = _LeaseHandle(self, lease, fence, asked + self._seconds)
        if self._keep(handle):
            return handle
        self._leases.give_back(lease)
        return None

    def _keep(self, handle: _LeaseHandle) -> bool:
        """Renew it from now on; `False` if it is too late for that."""
        with self._lock:
            if self._closed.is_set() or not handle.is_held():
                return False
            self._held[handle.lease.key] = handle
            if self._renewer is None:
                self._renewer = threading.Thread(
                    target=self._renew_until_closed, name="queue-locks", daemon=True
                )
                self._renewer.start()
            return True

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise QueueClosedError("the locker is closed")

    # -- keeping ---------------------------------------------------------------------------

    def _renew_until_closed(self) -> None:
        interval = pause = self._seconds / 3
        while not self._closed.wait(pause):
            # After an error sooner again: what is left of a lease is for trying.
            pause = interval if self._renew() else interval / 3

    def _renew(self) -> bool:
        with self._lock:
            handles = list(self._held.values())
        if not handles:
            return True
        asked = time.monotonic()
        still: set[str] | None = None
        try:
            still = self._leases.renew([handle.lease for handle in handles], self._ttl)
        except Exception as error:  # noqa: BLE001 - the thread must outlive whatever it is
            # Nobody said that they are lost: they are ours until their confirmed end.
            _log.warning(
                "locks could not be renewed: %s", error, exc_info=not isinstance(error, QueueError)
            )
        for handle in handles:
            if still is None:
                kept = not handle.lost.is_set()
            else:
                kept = handle.lease.owner in still and handle.lost.postpone(asked + self._seconds)
            if not kept and self._forget(handle):
                handle.lost.set()
                _log.warning("lock %r (fence %d) is lost", handle.lease.key, handle.fence)
                if still is not None:  # renewed, but too late for its holder
                    self._give_back(handle.lease, 0)
                self._turns.give(handle.lease.key)
        return still is not None

    # -- ending ----------------------------------------------------------------------------

    def _forget(self, handle: _LeaseHandle) -> bool:
        """Stop renewing; `False` if that was done before. Who did it ends the key's turn."""
        with self._lock:
            if self._held.get(handle.lease.key) is not handle:
                return False
            del self._held[handle.lease.key]
            return True

    def _release(self, handle: _LeaseHandle) -> None:
        if self._forget(handle):
            try:
                self._give_back(handle.lease, _RELEASE_SECONDS)
            finally:
                self._turns.give(handle.lease.key)

    def _give_back(self, lease: Lease, seconds: float) -> bool:
        """Try for `seconds`, at least once; `False` if the lease is left to its end."""
        give_up = time.monotonic() + seconds
        while True:
            try:
                self._leases.give_back(lease)
            except QueueError as error:
                passing = isinstance(error, StoreUnavailableError)
                if not passing or time.monotonic() >= give_up:
                    _log.warning("lock %r is left to its end: %s", lease.key, error)
                    return False
            else:
                return True
            time.sleep(random.uniform(0.005, 0.05))

    def close(self) -> None:
        """Release every lock that is held, and refuse new ones. Idempotent."""
        self._closed.set()
        with self._lock:
            handles, renewer = list(self._held.values()), self._renewer
        if renewer is not None:
            renewer.join(_JOIN_SECONDS)
        for handle in handles:
            handle.lost.set()
        reached = True  # else trying for each of the others would take as long again
        for handle in handles:
            if self._forget(handle):
                reached = reached and self._give_back(handle.lease, _RELEASE_SECONDS)
                self._turns.give(handle.lease.key)
        self._leases.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def before_fork(self) -> None:
        """See `ForkAware.before_fork`."""
        self._leases.before_fork()

    def after_fork(self, *, child: bool) -> None:
        """See `ForkAware.after_fork`."""
        self._leases.after_fork(child=child)
        if child:
            closed = self._closed.is_set()
            for handle in self._held.values():
                handle.lost.until = -math.inf
            self._begin_anew()
            if closed:
                self._closed.set()


class _Wait:
    """One wait for a lock: whose turn it is, and when to ask again."""

    def __init__(self, key: str, timeout: timedelta) -> None:
        self.turn = Turn.NOW
        self.refusal = still_held(key, timeout)
        self._key, self._timeout = key, timeout
        self._began = self._since = time.monotonic()  # to wait; for this turn
        self._deadline = self._began + timeout.total_seconds()

    def waited(self) -> timedelta:
        """Return how long it has lasted."""
        return timedelta(seconds=time.monotonic() - self._began)

    def hear(self, turn: Turn, error: StoreUnavailableError | None = None) -> None:
        """Take an answer in, or the error in its place."""
        if turn is not self.turn:
            self.turn, self._since = turn, time.monotonic()
        self.refusal = still_held(self._key, self._timeout)
        if error is not None:
            self.refusal = StoreUnavailableError(f"lock {self._key!r}: {error}")
            self.refusal.__cause__ = error

    def pause(self) -> float:
        """Return the seconds until the next try.

        In step with the time waited: a hand-over takes little longer for it, and the lease of a
        holder that died is not asked for a thousand times.

        Raises:
            StoreUnavailableError: the time is over.
        """
        now = time.monotonic()
        if now >= self._deadline:
            raise self.refusal
        pause = (now - self._since) / (20 if self.turn is Turn.NEXT else 4)
        pause = random.uniform(0.5, 1.5) * min(max(pause, _SHORTEST_PAUSE), _LONGEST_PAUSE)
        return min(pause, self._deadline - now)


class _LeaseHandle:
    """See `LockHandle`."""

    def __init__(self, locker: LeaseLocker, lease: Lease, fence: int, until: float) -> None:
        self.lease = lease
        self.fence = fence
        self.lost = LossSignal(until)
        self._locker = locker
        self._is_released = False

    @property
    def held_until(self) -> float:
        return self.lost.until

    def is_held(self) -> bool:
        return not self._is_released and not self.lost.is_set()

    def release(self) -> None:
        self._is_released = True
        self._locker._release(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
