"""The handler threads of one subscription.

Threads are started when there is work for them, up to the concurrency, and sleep on a lock of
their own (a baton). Work is taken from one deque. While items are left, one thread at a time is on
its way to look for them, and when it has found one, the next is sent: long handlers fan out over
all threads as fast as threads wake. After a handler that took next to no time nobody is sent: a
thread that wakes only to find nothing left makes the others wait for the interpreter's lock. Should
the next one take long after all, `spread` sends the others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from queue_lib.engine.run import Run
from queue_lib.logs import get_logger

__all__ = ["HandlerPool"]

_logger = get_logger("queue_lib.engine")


_BRIEF = 0.0001  # seconds; about what it takes to wake a thread


class HandlerPool:
    """Up to `size` threads that call `execute` with one run at a time.

    It returns how many seconds the handler took.
    """

    def __init__(self, name: str, size: int, execute: Callable[[Run], float]) -> None:
        self._name = name
        self._size = size
        self._execute = execute
        self._work: deque[Run] = deque()
        self._idle: deque[threading.Lock] = deque()  # batons of sleeping threads, newest last
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []  # guarded by _lock
        # A thread was sent to look for work and has not looked yet. Written without a lock: set by
        # mistake by two at once, one thread too many looks; cleared early, likewise.
        self._sent = False
        self._brief = False  # whether the handler that ended last was
        self._here = threading.local()  # .works: this is one of the threads
        self._stopped = False

    def submit(self, runs: Iterable[Run]) -> None:
        """Hand runs to the threads; does not wait. One of them goes on with the first itself."""
        self._work.extend(runs)
        if self._work and not self._sent and not (self._brief and self._works_here()):
            self._send_one()

    def has_waiting(self) -> bool:
        """Say whether runs wait for a thread."""
        return bool(self._work)

    def spread(self) -> None:
        """See to it that nothing waits behind a handler that takes longer than those before it."""
        if self._work:
            self._brief = False
            if not self._sent:
                self._send_one()

    def _works_here(self) -> bool:
        return getattr(self._here, "works", False)

    def stop(self) -> None:
        """Have every thread end once its present run did. Does not wait."""
        self._stopped = True
        while True:
            try:
                self._idle.pop().release()
            except IndexError:
                return

    def join(self, timeout: float | None) -> bool:
        """Wait for each thread but the calling one; say whether they all ended."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout)
        return not any(
            thread.is_alive() for thread in threads if thread is not threading.current_thread()
        )

    def _send_one(self) -> None:
        self._sent = True  # first: the thread that is sent clears it
        sent = False
        try:
            baton = self._idle.pop()
        except IndexError:
            sent = self._start_one()
        else:
            sent = True
            baton.release()
        finally:
            if not sent:
                self._sent = False  # all threads are busy; each looks when its run has ended

    def _start_one(self) -> bool:
        with self._lock:
            if self._stopped or len(self._threads) >= self._size:
                return False
            thread = threading.Thread(
                target=self._work_on, name=f"{self._name}-{len(self._threads)}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more threads to give
                if not self._threads:
                    raise
                _logger.warning("%s: fewer threads than asked for: %s", self._name, error)
                return False
            self._threads.append(thread)
            return True

    def _work_on(self) -> None:
        self._here.works = True
        baton = threading.Lock()
        baton.acquire()
        was_sent = True
        while not self._stopped:
            try:
                run = self._work.popleft()
            except IndexError:
                if was_sent:
                    self._sent = False  # before the baton is laid down: see _sleep
                self._sleep(baton)
                was_sent = True
                continue
            if was_sent:
                was_sent = self._sent = False
            if self._work and not self._sent and not self._brief:
                self._send_one()
            try:
                self._brief = self._execute(run) < _BRIEF
            # A thread of the pool outlives whatever happens to one run.
            except BaseException:
                _logger.exception("%s: a run was not settled; its lease is left to end", self._name)
            del run  # or an idle thread keeps the last payload

    def _sleep(self, baton: threading.Lock) -> None:
        self._idle.append(baton)
        # Work (or the stop) may have come after the deque was found empty and before the baton
        # was in place, or while this thread was the one that had been sent; then nobody wakes it.
        # Looking again closes that gap. If the baton is gone by now, somebody took it and releases
        # it: take that release, or the next sleep would end at once.
        if self._work or self._stopped:
            try:
                self._idle.remove(baton)
            except ValueError:
                baton.acquire()
        else:
            baton.acquire()
