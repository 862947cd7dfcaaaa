"""The options of one subscription: their meaning, defaults and bounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import StrEnum
from typing import Any

from queue_lib.durations import DurationLike, in_seconds, microseconds, to_timedelta
from queue_lib.errors import InvalidOptionsError, shown
from queue_lib.names import validate_name

__all__ = [
    "DEFAULT_BACKOFF_BASE",
    "DEFAULT_BACKOFF_MAX",
    "DEFAULT_BATCH_SIZE",
    "DEFAULT_CONCURRENCY",
    "DEFAULT_LEASE_DURATION",
    "DEFAULT_MAX_ATTEMPTS",
    "DEFAULT_POLL_INTERVAL",
    "MIN_LEASE_DURATION",
    "StartFrom",
    "SubscribeOptions",
    "check_count",
    "check_flag",
    "check_known",
    "fill_defaults",
]

DEFAULT_CONCURRENCY = 4
"""Handlers that run at once."""
DEFAULT_BATCH_SIZE = 32
"""Deliveries claimed in one call."""
DEFAULT_POLL_INTERVAL = timedelta(seconds=1)
"""Wait between polls that found nothing."""
DEFAULT_LEASE_DURATION = timedelta(seconds=30)
"""How long a claim survives without a heartbeat."""
DEFAULT_MAX_ATTEMPTS = 5
"""Attempts before a delivery is dead-lettered."""
DEFAULT_BACKOFF_BASE = timedelta(seconds=1)
"""The first retry delay."""
DEFAULT_BACKOFF_MAX = timedelta(minutes=5)
"""The longest retry delay."""
MIN_LEASE_DURATION = timedelta(milliseconds=300)
"""The shortest lease: three heartbeats must fit into it."""

_MILLISECOND = timedelta(milliseconds=1)


class StartFrom(StrEnum):
    """Which messages a group receives when it is registered for the first time."""

    LATEST = "latest"
    """Only messages published after the group is registered."""
    EARLIEST = "earliest"
    """Also every message still retained on the topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeOptions:
    """How one subscription consumes. Immutable, valid by construction; safe to share.

    A duration is a `timedelta` or a number of seconds, and is kept as a `timedelta`. `None`
    stands for the default. Anything out of bounds raises `InvalidOptionsError`.
    """

    concurrency: int = DEFAULT_CONCURRENCY
    """Handlers running at once in this subscription, 1 to 10,000; also what it holds at most."""
    batch_size: int = DEFAULT_BATCH_SIZE
    """Deliveries claimed in one call at most, 1 to 10,000."""
    poll_interval: timedelta = DEFAULT_POLL_INTERVAL
    """Wait between polls that found nothing, at least 1 ms; the engine varies it by ±20 %."""
    lease_duration: timedelta = DEFAULT_LEASE_DURATION
    """How long a claim is held without a heartbeat, at least `MIN_LEASE_DURATION`."""
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    """Attempts before a delivery is dead-lettered, 1 to 1,000,000."""
    backoff_base: timedelta = DEFAULT_BACKOFF_BASE
    """The first retry delay, at least 1 ms; doubled for each further attempt.

    At most `backoff_max`, to which only the default gives way."""
    backoff_max: timedelta = DEFAULT_BACKOFF_MAX
    """The longest retry delay, at least 1 ms."""
    dead_letter_topic: str | None = None
    """A topic that receives a copy of each dead delivery; `None`: no copies."""
    max_in_flight: int = 0
    """Deliveries of the group in flight over all instances at most; 0 means no cap.

    Every subscriber of the group should use the same value."""
    start_from: StartFrom = StartFrom.LATEST
    """Applies only when the group is registered for the first time."""

    def __post_init__(self) -> None:
        fill_defaults(self)
        check_count("concurrency", self.concurrency, 1, 10_000)
        check_count("batch_size", self.batch_size, 1, 10_000)
        check_count("max_attempts", self.max_attempts, 1, 1_000_000)
        check_count("max_in_flight", self.max_in_flight, 0, 1_000_000)
        self._normalise("poll_interval", least=_MILLISECOND)
        self._normalise("lease_duration", least=MIN_LEASE_DURATION)
        self._normalise("backoff_base", least=_MILLISECOND)
        self._normalise("backoff_max", least=_MILLISECOND)
        # By identity: one second that was asked for is not the default.
        chosen = self.backoff_base is not DEFAULT_BACKOFF_BASE
        if chosen and self.backoff_base > self.backoff_max:
            raise InvalidOptionsError(
                f"backoff_base {in_seconds(self.backoff_base)}: "
                f"must be at most backoff_max, {in_seconds(self.backoff_max)}"
            )
        if self.dead_letter_topic is not None:
            validate_name("dead_letter_topic", self.dead_letter_topic)
        try:
            object.__setattr__(self, "start_from", StartFrom(self.start_from))
        except ValueError:
            raise InvalidOptionsError(
                f"start_from {shown(self.start_from)}: must be 'latest' or 'earliest'"
            ) from None

    def _normalise(self, name: str, *, least: timedelta) -> None:
        value: DurationLike = getattr(self, name)
        object.__setattr__(self, name, to_timedelta(name, value, least=least))

    def backoff(self, attempt: int, rnd: Callable[[], float] | None = None) -> timedelta:
        """Return the delay before retrying a delivery whose `attempt`-th try failed.

        `backoff_base` doubled for each attempt after the first, capped at `backoff_max`, with
        equal jitter: the result lies in [d/2, d]. `rnd` returns a value in [0, 1); `None` uses
        `random.random`. Never raises, overflows or goes negative, whatever `attempt` is.
        """
        # Doubled as an integer, and never more often than it takes the least base to pass any cap.
        doublings = min(max(attempt, 1) - 1, 64)
        full = min(microseconds(self.backoff_base) << doublings, microseconds(self.backoff_max))
        spread = full // 2
        return timedelta(microseconds=full - spread + int((rnd or random.random)() * spread))


def fill_defaults(options: Any) -> None:
    """Put the default in place of each `None` in a frozen dataclass under construction."""
    for option in fields(options):
        if getattr(options, option.name) is None:
            object.__setattr__(options, option.name, option.default)


def check_known(given: Mapping[Any, object], known: Collection[str]) -> None:
    """Check the names of options.

    Raises:
        InvalidOptionsError: of the first that is not one of `known`.
    """
    for name in given:
        if name not in known:
            raise InvalidOptionsError(
                f"unknown option {shown(name)} (known: {', '.join(sorted(known))})"
            )


def check_flag(field: str, value: object) -> None:
    """Check an option that is on or off.

    Raises:
        InvalidOptionsError: neither `True` nor `False`.
    """
    if not isinstance(value, bool):
        raise InvalidOptionsError(f"{field} {shown(value)}: must be true or false")


def check_count(field: str, value: Any, least: int, most: int) -> None:
    """Check a whole-number option.

    Raises:
        InvalidOptionsError: not an `int`, or outside `least` to `most`.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOptionsError(f"{field} {shown(value)}: must be a whole number")
    if not least <= value <= most:
        raise InvalidOptionsError(f"{field} {shown(value)}: must be from {least:,} to {most:,}")
