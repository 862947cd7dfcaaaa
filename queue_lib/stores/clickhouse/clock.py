"""The server's clock, without asking for it each time.

Any answer that carries the server's time gives two bounds: it was read between the moment we
asked and the moment we heard. From then on our own monotonic clock counts on. What must not
happen early (a lease that ends, a timer) is compared with the lower bound; deadlines are set from
the upper one. So nothing is ever early, and nothing is late by more than one round trip.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["ServerClock"]

_FRESH = 5.0  # seconds: crystals drift apart by less than a millisecond in that time


class ServerClock:
    """Bounds of the server's time, in µs since 1970. Thread-safe.

    `injected`: tests only, an exact clock in its place.
    """

    def __init__(self, ask: Callable[[], int], injected: Callable[[], int] | None = None) -> None:
        self._ask = ask
        self._injected = injected
        self._anchor: tuple[int, float, float] | None = None  # replaced whole: safe to read

    def earliest(self) -> int:
        """Return an instant that the server's clock has reached."""
        if self._injected:
            return self._injected()
        server, _, heard = self._anchored()
        return server + int((time.monotonic() - heard) * 1e6)

    def latest(self) -> int:
        """Return an instant that the server's clock has not passed."""
        if self._injected:
            return self._injected()
        server, asked, _ = self._anchored()
        return server + int((time.monotonic() - asked) * 1e6) + 1

    def _anchored(self) -> tuple[int, float, float]:
        anchor = self._anchor
        if anchor is None or time.monotonic() - anchor[2] > _FRESH:
            asked = time.monotonic()
            server = self._ask()
            anchor = self._anchor = (server, asked, time.monotonic())
        return anchor
