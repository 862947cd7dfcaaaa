"""The delay before a retry: its bounds for every legal option, and how it is spread."""

from __future__ import annotations

import itertools
import math
import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_lib import SubscribeOptions
from queue_lib.durations import MAX_DURATION, microseconds

LEAST = timedelta(milliseconds=1)
ASCENDING = [
    LEAST, timedelta(seconds=1), timedelta(seconds=1e6), timedelta(days=3650), MAX_DURATION,
]  # fmt: skip
ALMOST_ONE = math.nextafter(1.0, 0.0)

attempts = st.integers(1, 10_000)
durations = st.timedeltas(LEAST, MAX_DURATION)
bounds = st.tuples(durations, durations).map(sorted)


def full_delay(options: SubscribeOptions, attempt: int) -> int:
    """What the contract says, in µs, without a care for the size of numbers."""
    base, cap = microseconds(options.backoff_base), microseconds(options.backoff_max)
    return min(base << (attempt - 1), cap)


def backoff(options: SubscribeOptions, attempt: int, rnd: float) -> int:
    return microseconds(options.backoff(attempt, lambda: rnd))


@given(bounds, attempts, st.floats(0, 1, exclude_max=True))
def test_it_lies_between_half_and_all_of_the_doubled_base(
    bounds: list[timedelta], attempt: int, rnd: float
) -> None:
    base, cap = bounds
    options = SubscribeOptions(backoff_base=base, backoff_max=cap)
    full = full_delay(options, attempt)
    assert full <= 2 * backoff(options, attempt, rnd) <= 2 * full


@given(bounds, attempts)
def test_chance_reaches_both_ends(bounds: list[timedelta], attempt: int) -> None:
    base, cap = bounds
    options = SubscribeOptions(backoff_base=base, backoff_max=cap)
    full = full_delay(options, attempt)
    assert backoff(options, attempt, 0.0) == math.ceil(full / 2)
    assert full - backoff(options, attempt, ALMOST_ONE) <= 1


@given(bounds, attempts, st.sampled_from([0.0, 0.5, ALMOST_ONE]))
def test_a_later_attempt_never_waits_less(
    bounds: list[timedelta], attempt: int, rnd: float
) -> None:
    base, cap = bounds
    options = SubscribeOptions(backoff_base=base, backoff_max=cap)
    assert backoff(options, attempt, rnd) <= backoff(options, attempt + 1, rnd)


@pytest.mark.parametrize(
    ("base", "cap"),
    list(itertools.combinations_with_replacement(ASCENDING, 2)),
)
def test_no_attempt_up_to_ten_thousand_overflows(base: timedelta, cap: timedelta) -> None:
    options = SubscribeOptions(backoff_base=base, backoff_max=cap, max_attempts=10_000)
    delays = [options.backoff(attempt, lambda: ALMOST_ONE) for attempt in range(1, 10_001)]
    assert timedelta(0) < delays[0]
    assert delays == sorted(delays)
    assert cap - delays[-1] <= timedelta(microseconds=1)


@pytest.mark.parametrize("attempt", [0, -1, -(10**30), 10**6, 10**30])
def test_an_attempt_that_cannot_be_is_not_an_error(attempt: int) -> None:
    delay = SubscribeOptions().backoff(attempt)
    assert timedelta(seconds=0.5) <= delay <= timedelta(minutes=5)


def test_the_first_delays_are_the_base_doubled() -> None:
    options = SubscribeOptions(backoff_base=timedelta(seconds=1), backoff_max=timedelta(seconds=10))
    halves = [options.backoff(attempt, lambda: 0.0).total_seconds() for attempt in range(1, 7)]
    assert halves == [0.5, 1, 2, 4, 5, 5]


@pytest.mark.parametrize("attempt", [1, 4, 10_000])
def test_the_jitter_is_uniform_over_the_upper_half(attempt: int) -> None:
    """Bounds alone do not show this: a jitter that never leaves one side keeps to them, too."""
    options, rnd = SubscribeOptions(), random.Random(20_260_101).random
    full = full_delay(options, attempt)
    shares = [microseconds(options.backoff(attempt, rnd)) / full for _ in range(8_000)]
    assert sum(shares) / len(shares) == pytest.approx(0.75, abs=0.005)
    for quarter in range(4):
        low = 0.5 + quarter / 8
        inside = sum(low <= share < low + 0.125 for share in shares)
        assert inside / len(shares) == pytest.approx(0.25, abs=0.02)


def test_without_a_source_of_chance_it_is_spread_all_the_same() -> None:
    options = SubscribeOptions()
    delays = [options.backoff(1) for _ in range(200)]
    assert len(set(delays)) > 100
    assert min(delays) < timedelta(seconds=0.75) < max(delays)
    assert timedelta(seconds=0.5) <= min(delays)
    assert max(delays) <= timedelta(seconds=1)
