"""Durations as callers may write them, and as the library keeps them."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction

from queue_lib.errors import InvalidOptionsError, shown

__all__ = [
    "MAX_DURATION",
    "DurationLike",
    "in_seconds",
    "microseconds",
    "parse_duration",
    "to_timedelta",
]

DurationLike = timedelta | float | int
"""A `timedelta`, or a number of seconds."""

MAX_DURATION = timedelta(days=36_500)
"""No option may be longer: sums with the clock then stay within every backend's integers."""

_GO_UNITS: dict[str, int | Fraction] = {
    "ns": Fraction(1, 1000), "us": 1, "µs": 1, "μs": 1,
    "ms": 1000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000,
}  # fmt: skip
_GO_PART = re.compile(r"([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(ns|us|µs|μs|ms|s|m|h)")


def to_timedelta(
    field: str, value: DurationLike, *, least: timedelta, most: timedelta = MAX_DURATION
) -> timedelta:
    """Read a duration option.

    Raises:
        InvalidOptionsError: not a duration, not finite, or outside `least` to `most`.
    """
    if isinstance(value, bool) or not isinstance(value, timedelta | int | float):
        raise InvalidOptionsError(
            f"{field} {shown(value)}: must be a timedelta or a number of seconds"
        )
    duration: timedelta | None = None
    if isinstance(value, timedelta):
        duration = value
    elif abs(value) <= MAX_DURATION.total_seconds():  # not NaN, nor too much for a timedelta
        duration = timedelta(seconds=value)
    if duration is None or not least <= duration <= most:
        given = in_seconds(value) if isinstance(value, timedelta) else shown(value)
        raise InvalidOptionsError(
            f"{field} {given}: must be from {in_seconds(least)} to {in_seconds(most)}"
        )
    return duration


def parse_duration(field: str, text: str) -> timedelta:
    """Read a Go duration such as ``"10m"``, ``"1h30m"`` or ``"1.5s"``, to the microsecond.

    Negative ones are refused: no option of ours may be one.

    Raises:
        InvalidOptionsError: the text is not one.
    """
    unsigned = text.removeprefix("+")
    total, position = Fraction(), 0
    while part := _GO_PART.match(unsigned, position):
        total += Fraction(part[1]) * _GO_UNITS[part[2]]
        position = part.end()
    if not unsigned or position != len(unsigned) or total > microseconds(MAX_DURATION):
        raise InvalidOptionsError(
            f'{field} {shown(text)}: must be a duration such as "10m" or "1h30m"'
        )
    return timedelta(microseconds=round(total))


def in_seconds(duration: timedelta) -> str:
    """Return how an error shows a duration: ``"0.3 s"``, ``"3,153,600,000 s"``."""
    whole, fraction = divmod(abs(microseconds(duration)), 1_000_000)
    sign = "-" if duration < timedelta(0) else ""
    return f"{sign}{whole:,}{f'.{fraction:06}'.rstrip('0') if fraction else ''} s"


def microseconds(duration: timedelta) -> int:
    """Return the duration in whole microseconds, exactly."""
    return (duration.days * 86_400 + duration.seconds) * 1_000_000 + duration.microseconds
