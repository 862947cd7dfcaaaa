"""The handler threads of one subscription.

Threads are started when there is work for them, up to the concurrency, and sleep on a lock of
their own (a baton). Work is taken from one deque, and whoever takes an item wakes one more
thread while items are left. So a batch of short handlers is run by a thread or two without a
switch for each item, and long handlers fan out over all threads within microseconds.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable

from queue_lib.engine.run import Run

__all__ = ["HandlerPool"]

_logger = logging.getLogger("queue_lib.engine")


class HandlerPool:
    """Up to `size` threads that call `execute` with one run at a time."""

    def __init__(self, name: str, size: int, execute: Callable[[Run], None]) -> None:
        self._name = name
        self._size = size
        self._execute = execute
        self._work: deque[Run] = deque()
        self._idle: deque[threading.Lock] = deque()  # batons of sleeping threads, newest last
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []  # guarded by _lock
        self._stopped = False

    def submit(self, runs: Iterable[Run]) -> None:
        """Hand runs to the threads; does not wait."""
        self._work.extend(runs)
        if self._work:
            self._wake_one()

    def stop(self) -> None:
        """Have every thread end once its present run did. Does not wait."""
        self._stopped = True
        with self._lock:
            threads = len(self._threads)
        for _ in range(threads):
            self._wake_one()

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

    def _wake_one(self) -> None:
        try:
            baton = self._idle.pop()
        except IndexError:
            self._start_one()
        else:
            baton.release()

    def _start_one(self) -> None:
        with self._lock:
            if self._stopped or len(self._threads) >= self._size:
                return
            thread = threading.Thread(
                target=self._work_on, name=f"{self._name}-{len(self._threads)}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more threads to give
                if not self._threads:
                    raise
                _logger.warning("%s: fewer threads than asked for: %s", self._name, error)
            else:
                self._threads.append(thread)

    def _work_on(self) -> None:
        baton = threading.Lock()
        baton.acquire()
        while not self._stopped:
            try:
                run = self._work.popleft()
            except IndexError:
                self._sleep(baton)
                continue
            if self._work:
                self._wake_one()
            try:
                self._execute(run)
            # A thread of the pool outlives whatever happens to one run.
            except BaseException:
                _logger.exception("%s: a run was not settled; its lease is left to end", self._name)
            del run  # or an idle thread keeps the last payload

    def _sleep(self, baton: threading.Lock) -> None:
        self._idle.append(baton)
        # Work (or the stop) may have come after the deque was found empty and before the baton
        # was in place; then nobody wakes this thread. Looking again closes that gap. If the baton
        # is gone by now, somebody took it and releases it: take that release, or the next sleep
        # would end at once.
        if self._work or self._stopped:
            try:
                self._idle.remove(baton)
            except ValueError:
                baton.acquire()
        else:
            baton.acquire()
