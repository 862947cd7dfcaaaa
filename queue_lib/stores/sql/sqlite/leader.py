"""One commit for all who wait for one.

A durable commit waits for the disk, and whoever writes next waits for that commit. So the first
to come leads: once it has the write lock, it does the work of all who have come meanwhile, in one
transaction, and the disk is waited for once. There is no thread for it: a lone writer leads itself
and hands nothing to anybody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from queue_lib.errors import StoreUnavailableError
from queue_lib.stores.sql.dialect import Connection
from queue_lib.stores.sql.sqlite.statements import all_or_nothing

__all__ = ["Leader"]

Work = Callable[..., Any]


class _Request:
    """What one thread wants done."""

    __slots__ = ("args", "error", "is_done", "kwargs", "leads", "result", "turn", "work")

    def __init__(self, work: Work, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.work = work
        self.args = args
        self.kwargs = kwargs
        self.turn = threading.Lock()  # released when it is done, or is to lead
        self.turn.acquire()
        self.leads = False  # a leader writes this and the next three, then releases `turn`
        self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def attempt(self, connection: Connection) -> None:
        """Do the work so that its failure is its own."""
        self.error = None
        try:
            with all_or_nothing(connection):
                self.result = self.work(connection, *self.args, **self.kwargs)
        except Exception as error:
            driver: Any = connection
            if not driver.in_transaction:  # a full disk ends it, and undoes what others did
                raise
            self.error = error


class Leader:
    """Does work in shared transactions. Thread-safe."""

    def __init__(self, transact: Callable[..., Any]) -> None:
        self._transact = transact  # runs work in a transaction; may run it again
        self._lock = threading.Lock()
        self._waiting: list[_Request] = []  # guarded by _lock
        self._is_led = False  # guarded by _lock

    def run(self, work: Work, *args: Any, **kwargs: Any) -> Any:
        """Return what `work` returned once that is committed, or raise what it raised."""
        mine = _Request(work, args, kwargs)
        with self._lock:
            self._waiting.append(mine)
            mine.leads, self._is_led = not self._is_led, True
        if not mine.leads:
            self._wait(mine)
        if not mine.is_done:
            self._lead()
        if mine.error is not None:
            raise mine.error
        return mine.result

    def _wait(self, mine: _Request) -> None:
        try:
            mine.turn.acquire()
        except BaseException:  # Ctrl-C: the others must not wait for one who is gone
            with self._lock:
                if mine in self._waiting:
                    self._waiting.remove(mine)
            if mine.leads:
                self._hand_over([])
            raise

    def _lead(self) -> None:
        batch: list[_Request] = []
        try:
            self._transact(self._do, batch)
        except BaseException as error:
            batch += self._take()  # they have waited for the same lock
            if not isinstance(error, Exception):  # Ctrl-C is for this thread alone
                error = StoreUnavailableError("the commit was interrupted")
            for request in batch:
                request.error = error
            raise
        finally:
            self._hand_over(batch)

    def _hand_over(self, batch: list[_Request]) -> None:
        """Let those of a finished batch go, and the next one lead."""
        for request in batch:
            request.is_done = True
        with self._lock:
            self._is_led = bool(self._waiting)
            for successor in self._waiting[:1]:
                successor.leads = True
                successor.turn.release()
        for request in batch:
            request.turn.release()

    def _do(self, connection: Connection, batch: list[_Request]) -> None:
        batch += self._take()
        if len(batch) == 1:
            alone = batch[0]
            alone.result = alone.work(connection, *alone.args, **alone.kwargs)
            return
        for request in batch:
            request.attempt(connection)

    def _take(self) -> list[_Request]:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        return waiting
