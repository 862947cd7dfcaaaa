"""A clock that a test moves by hand, so that no test ever waits for a lease."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

from queue_lib.durations import DurationLike, microseconds

__all__ = ["ManualClock"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ManualClock:
    """A store's clock that stands still until `advance`. Thread-safe.

    Calling it returns the instant in µs since 1970, as the `clock` of a store must.
    """

    def __init__(self, start: datetime = datetime(2030, 1, 1, 12, tzinfo=UTC)) -> None:
        self._lock = threading.Lock()
        self._now = microseconds(start - _EPOCH)  # guarded by _lock

    def __call__(self) -> int:
        with self._lock:
            return self._now

    def advance(self, duration: DurationLike) -> None:
        """Move on by a `timedelta` or a number of seconds."""
        if not isinstance(duration, timedelta):
            duration = timedelta(seconds=duration)
        if duration < timedelta(0):
            raise ValueError(f"duration {duration}: time does not run backwards")
        with self._lock:
            self._now += microseconds(duration)

    def instant(self, ahead: DurationLike = 0) -> datetime:
        """Return the instant `ahead` of now, for `Message.deliver_at`."""
        if not isinstance(ahead, timedelta):
            ahead = timedelta(seconds=ahead)
        return _EPOCH + timedelta(microseconds=self()) + ahead
