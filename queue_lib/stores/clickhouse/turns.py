"""Turns: what one holder of a lock may do, and how everybody who held it before is shut out.

The fence of a turn is the high part of every `ver` and `seq` that it writes, and the server
refuses a write below the fence it has on record. A newcomer raises that record *before* he reads
anything, so whoever held the lock before can change nothing that the newcomer has read.

Whoever holds the lock twice running (the locker's fence rose by exactly one) needs neither: what
he remembers from last time is still true. That is why most operations are a single INSERT.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, TypeVar

from queue_lib.errors import LockerRequiredError, StoreUnavailableError
from queue_lib.locks import DistributedLocker, LockHandle, ProcessLocker
from queue_lib.logs import get_logger
from queue_lib.stores.clickhouse import statements
from queue_lib.stores.clickhouse.clock import ServerClock
from queue_lib.stores.clickhouse.database import Database
from queue_lib.stores.clickhouse.errors import RefusedError, TooManyPartsError
from queue_lib.stores.clickhouse.schema import FENCE_BITS, LIVE_COLUMNS, PUBLISH
from queue_lib.stores.clickhouse.statements import Statements

__all__ = ["Seat", "Turn", "Turns", "group_name"]

T = TypeVar("T")
C = TypeVar("C")

_log = get_logger("queue_lib.clickhouse")

_PATIENCE = timedelta(seconds=30)  # for a lock
_TRIES = 6
_FIRST_PAUSE = 0.1  # seconds, doubled each time, when the server has too many parts
_LEAP = 1 << 20  # more than anybody holds a lock without writing: see Turns._establish


def group_name(topic: str, group: str) -> str:
    """Name the lock and the fence of a consumer group."""
    return f"g:{topic}:{group}"


@dataclass(eq=False)
class Seat(Generic[C]):
    """What this process remembers between its turns under one name."""

    name: str
    scan: str  # a query for the highest number ever written under the name
    settled: str = ""  # see Statements.settled
    mutex: threading.Lock = field(default_factory=threading.Lock)
    # The rest is guarded by `mutex`.
    locker_fence: int | None = None  # of the last turn, if it ended well
    fence: int = 0
    memory: C | None = None


class Turn(Generic[C]):
    """One hold of a lock."""

    def __init__(self, turns: Turns, seat: Seat[C], handle: LockHandle, fence: int) -> None:
        self.database = turns.database
        self.sql = turns.sql
        self.clock = turns.clock
        self.seat = seat
        self.fence = fence
        self._handle = handle
        self._began = time.monotonic()
        self._count = 0

    def number(self, count: int = 1) -> int:
        """Take `count` numbers, higher than any before under this name; return the first."""
        first = (self.fence << FENCE_BITS) + self._count + 1
        self._count += count
        if self._count >= 1 << FENCE_BITS:
            raise StoreUnavailableError("too many rows for one turn")
        return first

    def select(self, template: str, **values: Any) -> list[Any]:
        """Run a query."""
        return self.database.select(self.sql.fill(template, **values))

    def check(self) -> None:
        """Stop here if the lock may be somebody else's: the server would refuse the write."""
        if self._handle.lost.is_set():
            raise RefusedError(f"the lock {self.seat.name!r} was lost")

    def insert(self, rows: list[tuple[Any, ...]]) -> None:
        """Write rows of `live`: one block."""
        self.check()
        self.database.insert(self.sql.live, LIVE_COLUMNS, rows)

    def command(self, template: str, **values: Any) -> None:
        """Run an INSERT … SELECT."""
        self.check()
        self.database.command(self.sql.fill(template, **values))

    def is_superseded(self, *, after: float = 0.0) -> bool:
        """Ask whether somebody raised the fence since, if the turn has lasted `after` seconds."""
        if time.monotonic() - self._began < after and not self._handle.lost.is_set():
            return False
        ((fence, _),) = self.select(statements.FENCE, name=self.seat.name)
        return bool(fence > self.fence)


class Turns:
    """Hands out turns. Thread-safe."""

    def __init__(
        self,
        database: Database,
        sql: Statements,
        clock: ServerClock,
        locker: DistributedLocker | None,
        key: str,
    ) -> None:
        self.database = database
        self.sql = sql
        self.clock = clock
        self.is_shared = locker is not None
        self._given = locker
        self._key = key
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a forked child must."""
        self._locker = self._given or ProcessLocker()
        self._seats: dict[str, Seat[Any]] = {}  # guarded by _mutex
        self._mutex = threading.Lock()

    def can_consume(self) -> None:
        """Raise `LockerRequiredError` unless other processes respect our locks."""
        if not self.is_shared:
            raise LockerRequiredError(
                "consuming on ClickHouse needs a locker that all instances share: "
                "open_queue(…, locker=SQLLocker(…)), or ProcessLocker() for a single process"
            )

    def publish(self, work: Callable[[Turn[None]], T]) -> T:
        """Run `work` in a turn of the publishers."""
        scan = self.sql.fill(statements.WRITTEN_MESSAGES)
        return self._run(PUBLISH, scan, self.sql.settled(), work)

    def group(self, topic: str, group: str, work: Callable[[Turn[Any]], T]) -> T:
        """Run `work` in a turn of a consumer group.

        Without a shared locker nobody may consume; but a publisher may come in to give a group
        what came late, and whoever holds its lock then finds himself refused and comes in again.
        """
        scan = self.sql.fill(statements.WRITTEN_LIVE, topic=topic, group=group)
        return self._run(group_name(topic, group), scan, self.sql.settled(topic, group), work)

    def _run(self, name: str, scan: str, settled: str, work: Callable[[Turn[Any]], T]) -> T:
        """Run `work`, again if the server refused it: the newcomer's turn was in between.

        `work` must begin by looking at what is there.
        """
        with self._mutex:
            seat = self._seats.setdefault(name, Seat(name, scan, settled))
        pause = _FIRST_PAUSE
        for remaining in reversed(range(_TRIES)):
            try:
                with self._turn(seat) as turn:
                    return work(turn)
            except TooManyPartsError:
                if not remaining:
                    raise
                # Outside the lock, and longer each time: merges must catch up.
                _log.warning("ClickHouse has too many parts; trying again in %.1f s", pause)
                time.sleep(pause * random.uniform(0.75, 1.25))
                pause *= 2
            except RefusedError as error:
                if not remaining:
                    raise
                _log.debug("%s: %s; taking the lock again", name, error)
        raise AssertionError("unreachable")

    @contextmanager
    def _turn(self, seat: Seat[Any]) -> Iterator[Turn[Any]]:
        # Threads of this process queue up here and not at the locker.
        if not seat.mutex.acquire(timeout=_PATIENCE.total_seconds()):
            raise StoreUnavailableError(f"lock {seat.name!r}: still held after {_PATIENCE}")
        try:
            handle = self._locker.acquire(self._key + seat.name, _PATIENCE)
            try:
                turn = Turn(self, seat, handle, self._enter(seat, handle.fence))
                yield turn
            except BaseException:
                seat.memory = seat.locker_fence = None
                raise
            else:
                seat.locker_fence, seat.fence = handle.fence, turn.fence
            finally:
                handle.release()
        finally:
            seat.mutex.release()

    def _enter(self, seat: Seat[Any], locker_fence: int) -> int:
        if seat.locker_fence is not None and locker_fence == seat.locker_fence + 1:
            return seat.fence + 1
        seat.memory = None
        fence = self._establish(seat, locker_fence)
        values = {"name": seat.name, "fence": fence, "locker": locker_fence}
        self.database.command(self.sql.fill(statements.RAISE, **values))
        ((raised, _),) = self.database.select(self.sql.fill(statements.FENCE, name=seat.name))
        if raised != fence:
            raise RefusedError(f"{seat.name}: somebody else came in at the same time")
        if seat.settled and self.database.select(seat.settled)[0][0] != 1:
            raise RefusedError(f"{seat.name}: not every replica has what was written before")
        return fence

    def _establish(self, seat: Seat[Any], locker_fence: int) -> int:
        """Return a fence above that of everybody who held the lock before.

        The locker's own, plus what was added to it before, as long as the locker goes on
        counting. A locker that starts again (a process's own, a table that was dropped) and a
        server that forgot make it a leap past everything written; a holder that has been stopped
        may be some way beyond what he wrote, but never that far.
        """
        ((fence, recorded),) = self.database.select(self.sql.fill(statements.FENCE, name=seat.name))
        if self.is_shared and fence and locker_fence > recorded:
            return int(locker_fence + fence - recorded)
        ((written,),) = self.database.select(seat.scan)
        past = max(fence, (written or 0) >> FENCE_BITS)
        if self.is_shared and locker_fence > past:
            return locker_fence
        # Publishers without a shared locker may leap at the same moment.
        return int(past + _LEAP + (0 if self.is_shared else random.getrandbits(FENCE_BITS - 1)))
