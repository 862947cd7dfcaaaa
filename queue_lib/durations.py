"""Durations as callers may write them, and as the library keeps them."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from queue_lib.errors import InvalidOptionsError

__all__ = ["MAX_DURATION", "DurationLike", "microseconds", "parse_duration", "to_timedelta"]

DurationLike = timedelta | float | int
"""A `timedelta`, or a number of seconds."""

MAX_DURATION = timedelta(days=36_500)
"""No option may be longer: sums with the clock then stay within every backend's integers."""

_GO_UNITS = {
    "ns": 1e-3, "us": 1.0, "µs": 1.0, "μs": 1.0,
    "ms": 1e3, "s": 1e6, "m": 6e7, "h": 3.6e9,
}  # fmt: skip
_GO_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")


def to_timedelta(
    field: str, value: DurationLike, *, least: timedelta, most: timedelta = MAX_DURATION
) -> timedelta:
    """Read a duration option.

    Raises:
        InvalidOptionsError: not a duration, not finite, or outside `least` to `most`.
    """
    if isinstance(value, bool) or not isinstance(value, timedelta | int | float):
        raise InvalidOptionsError(f"{field} {value!r}: must be a timedelta or a number of seconds")
    if isinstance(value, timedelta):
        duration = value
    else:
        if not math.isfinite(value) or abs(value) > MAX_DURATION.total_seconds() * 2:
            raise InvalidOptionsError(f"{field} {value!r}: must be from {least} to {most}")
        duration = timedelta(seconds=value)
    if not least <= duration <= most:
        raise InvalidOptionsError(f"{field} {value!r}: must be from {least} to {most}")
    return duration


def parse_duration(field: str, text: str) -> timedelta:
    """Read a Go duration such as ``"10m"``, ``"1h30m"`` or ``"1.5s"``.

    Raises:
        InvalidOptionsError: the text is not one.
    """
    total, position = 0.0, 0
    while position < len(text) and (part := _GO_PART.match(text, position)):
        total += float(part[1]) * _GO_UNITS[part[2]]
        position = part.end()
    if not text or position != len(text) or total > microseconds(MAX_DURATION):
        raise InvalidOptionsError(f'{field} {text!r}: must be a duration such as "10m" or "1h30m"')
    return timedelta(microseconds=total)


def microseconds(duration: timedelta) -> int:
    """Return the duration in whole microseconds, exactly."""
    return (duration.days * 86_400 + duration.seconds) * 1_000_000 + duration.microseconds
