"""Durations: `timedelta`s and seconds as options, Go durations in configurations."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_lib import InvalidOptionsError
from queue_lib.durations import MAX_DURATION, microseconds, parse_duration, to_timedelta

MILLISECOND = timedelta(milliseconds=1)

# -- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "duration"),
    [
        (timedelta(seconds=2), timedelta(seconds=2)),
        (2, timedelta(seconds=2)),
        (0.25, timedelta(milliseconds=250)),
        (0.001, MILLISECOND),
        (MAX_DURATION, MAX_DURATION),
        (36_500 * 86_400, MAX_DURATION),
    ],
)
def test_a_duration_is_a_timedelta_or_seconds(value: timedelta | float, duration: timedelta):
    assert to_timedelta("lease", value, least=MILLISECOND) == duration


@pytest.mark.parametrize(
    "value",
    [
        True, False, None, "1", b"1", Decimal(1), Fraction(1), 1j, [1],
        0, -1, 0.0009, timedelta(0), timedelta(microseconds=999), timedelta(seconds=-5),
        float("nan"), float("inf"), float("-inf"), 1e300, 10**400, 10**5000, -(10**5000),
        MAX_DURATION + timedelta(microseconds=1), timedelta.max, timedelta.min,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_anything_else_is_refused_in_short_words(value: object) -> None:
    with pytest.raises(InvalidOptionsError, match=r"^lease .*must be") as caught:
        to_timedelta("lease", value, least=MILLISECOND)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 250


@given(st.timedeltas())
def test_microseconds_are_exact(duration: timedelta) -> None:
    assert microseconds(duration) == duration // timedelta(microseconds=1)


# -- Go durations ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("10m", timedelta(minutes=10)),
        ("1h30m", timedelta(hours=1.5)),
        ("1.5s", timedelta(seconds=1.5)),
        (".5s", timedelta(seconds=0.5)),
        ("2.s", timedelta(seconds=2)),
        ("0s", timedelta(0)),
        ("+10m", timedelta(minutes=10)),
        ("100ms", timedelta(milliseconds=100)),
        ("7us", timedelta(microseconds=7)),
        ("7\u00b5s", timedelta(microseconds=7)),  # the micro sign
        ("7\u03bcs", timedelta(microseconds=7)),  # the Greek letter
        ("2000ns", timedelta(microseconds=2)),
        ("1h1m1s1ms1us", timedelta(hours=1, minutes=1, seconds=1, milliseconds=1, microseconds=1)),
        ("1m1h1m", timedelta(hours=1, minutes=2)),
        ("875999h59m59.999999s", MAX_DURATION - timedelta(microseconds=1)),
        ("875716.203849597h", timedelta(microseconds=3_152_578_333_858_549)),  # a float is 1 off
        ("876000h", MAX_DURATION),
    ],
)
def test_a_go_duration_is_read(text: str, duration: timedelta) -> None:
    assert parse_duration("janitor_interval", text) == duration


@pytest.mark.parametrize(
    "text",
    [
        "", "+", "-", "-10m", "++1m", "0", "10", "m", "10 m", " 10m", "10m ", "10m\n", "\n10m",
        "10M", "10d", "1w", "1e3s", "1..5s", "1.5.5s", ".s", "1m-5s", "1,5s", "1_0s", "nan", "inf",
        "\u0661m", "\uff11m", "10m\0", "\ud800", "876000h1us", "9" * 5000 + "h", "9" * 20 + "h",
        "1" * 1_000_000, "1ms" * 1_000 + "x",
    ],
    ids=lambda text: ascii(text)[:20],
)  # fmt: skip
def test_anything_else_is_no_go_duration(text: str) -> None:
    with pytest.raises(InvalidOptionsError, match=r"^janitor_interval '.*must be a dur") as caught:
        parse_duration("janitor_interval", text)
    assert len(str(caught.value)) < 250


UNITS = {
    "ns": Fraction(1, 1000),
    "us": Fraction(1),
    "ms": Fraction(1000),
    "s": Fraction(10**6),
    "m": Fraction(60 * 10**6),
    "h": Fraction(3600 * 10**6),
}


@given(
    st.lists(
        st.tuples(
            st.decimals(0, 10**5, allow_nan=False, places=9).map(lambda number: f"{number:f}"),
            st.sampled_from(sorted(UNITS)),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_a_go_duration_is_exact_to_the_microsecond(parts: list[tuple[str, str]]) -> None:
    exact = sum(Fraction(number) * UNITS[unit] for number, unit in parts)
    text = "".join(number + unit for number, unit in parts)
    assert microseconds(parse_duration("janitor_interval", text)) == round(exact)


@given(st.text(st.sampled_from("0123456789.hmsnuµ+- e")))
def test_reading_a_text_gives_a_duration_or_our_error(text: str) -> None:
    with contextlib.suppress(InvalidOptionsError):
        assert timedelta(0) <= parse_duration("janitor_interval", text) <= MAX_DURATION
