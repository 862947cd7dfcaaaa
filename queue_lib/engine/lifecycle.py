"""Threads that are supervised.

A `Service` is a thread that cannot die unnoticed: what its body raises is logged with its
traceback, and the body is started again after a pause. Threads are daemons, so that a handler
that never returns cannot keep the interpreter from ending.

Stop order of a subscription, written once: no new claims → handlers until the deadline → cancel
what is left → release what is still held; heartbeats and acknowledgements go on until then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

from queue_lib.durations import DurationLike, to_timedelta
from queue_lib.errors import QueueError
from queue_lib.logs import get_logger

__all__ = ["Deadline", "Service", "is_bug"]

_logger = get_logger("queue_lib.engine")


class Deadline:
    """An instant on the monotonic clock by which something has to end; never without a timeout.

    Raises:
        InvalidOptionsError: the timeout is no duration, or negative.
    """

    __slots__ = ("_at",)

    def __init__(self, timeout: DurationLike | None) -> None:
        self._at: float | None = None
        if timeout is not None:
            seconds = to_timedelta("timeout", timeout, least=timedelta(0)).total_seconds()
            self._at = time.monotonic() + seconds

    def left(self) -> float | None:
        """Return the seconds that are left, at least 0; `None`: no end."""
        if self._at is None:
            return None
        return min(max(self._at - time.monotonic(), 0.0), threading.TIMEOUT_MAX)


class Service:
    """A supervised thread: `body(stop)` runs until it returns after `stop` was set.

    Starting twice, stopping twice and stopping before the start are fine.
    """

    def __init__(
        self,
        name: str,
        body: Callable[[threading.Event], None],
        *,
        pause: float = 0.1,
        longest_pause: float = 30.0,
    ) -> None:
        self.name = name
        self.error: str | None = None  # why the body failed last; cleared by `succeeded`
        self._body = body
        self._pause, self._longest_pause = pause, longest_pause
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None  # guarded by _lock

    @property
    def alive(self) -> bool:
        """Say whether the thread runs."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def start(self) -> None:
        """Start the thread unless it was started or stopped before."""
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                thread = threading.Thread(target=self._supervise, name=self.name, daemon=True)
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        """Ask the body to return. Does not wait."""
        self._stop.set()

    def join(self, timeout: float | None) -> bool:
        """Wait for the thread to end; say whether it did. A thread does not wait for itself."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def succeeded(self) -> None:
        """Called by the body after a good round: forget the last error."""
        if self.error is not None:
            self.error = None
            _logger.info("%s works again", self.name)

    def _supervise(self) -> None:
        pause = self._pause
        while True:
            started = time.monotonic()
            try:
                self._body(self._stop)
            # A service outlives whatever its body raises, also what `threading` would not report.
            except BaseException as error:
                if time.monotonic() - started > self._longest_pause:
                    pause = self._pause
                self.error = f"{type(error).__name__}: {error}"
                _logger.error(  # noqa: TRY400 - with a traceback only where that says more
                    "%s failed, it starts again in %.1f s: %s", self.name, pause, self.error,
                    exc_info=is_bug(error),
                )  # fmt: skip
            else:
                return
            if self._stop.wait(pause):
                return
            pause = min(pause * 2, self._longest_pause)


def is_bug(error: BaseException) -> bool:
    """Say whether to log an error with its traceback: faults of a store say what they are."""
    return not isinstance(error, QueueError)
