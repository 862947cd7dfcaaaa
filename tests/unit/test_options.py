"""Subscription options: bounds, defaults, and what a wrong value is told."""

from __future__ import annotations

import dataclasses
import pickle
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

import queue_lib
from queue_lib import InvalidNameError, InvalidOptionsError, StartFrom, SubscribeOptions
from queue_lib.durations import MAX_DURATION
from queue_lib.stores.memory import MemoryStore

COUNTS = {
    "concurrency": (1, 10_000),
    "batch_size": (1, 10_000),
    "max_attempts": (1, 1_000_000),
    "max_in_flight": (0, 1_000_000),
}
DURATIONS = {
    "poll_interval": timedelta(milliseconds=1),
    "lease_duration": timedelta(milliseconds=300),
    "backoff_base": timedelta(milliseconds=1),
    "backoff_max": timedelta(milliseconds=1),
}
MICROSECOND = timedelta(microseconds=1)


def options(name: str, value: object) -> SubscribeOptions:
    fields: dict[str, Any] = {name: value}
    return SubscribeOptions(**fields)


# -- defaults ----------------------------------------------------------------------------------


def test_the_defaults_are_the_contracts() -> None:
    assert dataclasses.asdict(SubscribeOptions()) == {
        "concurrency": 4,
        "batch_size": 32,
        "poll_interval": timedelta(seconds=1),
        "lease_duration": timedelta(seconds=30),
        "max_attempts": 5,
        "backoff_base": timedelta(seconds=1),
        "backoff_max": timedelta(minutes=5),
        "dead_letter_topic": None,
        "max_in_flight": 0,
        "start_from": StartFrom.LATEST,
    }


@pytest.mark.parametrize("option", dataclasses.fields(SubscribeOptions), ids=lambda f: str(f.name))
def test_none_stands_for_the_default(option: dataclasses.Field[object]) -> None:
    assert getattr(options(option.name, None), option.name) == option.default


# -- counts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "bounds"), COUNTS.items())
def test_a_count_may_be_anything_from_bound_to_bound(name: str, bounds: tuple[int, int]) -> None:
    assert [getattr(options(name, bound), name) for bound in bounds] == list(bounds)


@pytest.mark.parametrize(("name", "bounds"), COUNTS.items())
def test_a_count_beyond_its_bounds_is_refused(name: str, bounds: tuple[int, int]) -> None:
    least, most = bounds
    for value in (least - 1, most + 1, -(10**30), 10**5000):
        with pytest.raises(InvalidOptionsError, match=f"^{name} .*from {least:,} to {most:,}$"):
            options(name, value)


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_must_be_a_whole_number(name: str) -> None:
    for value in (True, False, 4.0, "4", Decimal(4), float("nan"), [4], b"4"):
        with pytest.raises(InvalidOptionsError, match=f"^{name} .*must be a whole number$"):
            options(name, value)


# -- durations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "least"), DURATIONS.items())
def test_a_duration_may_be_anything_from_bound_to_bound(name: str, least: timedelta) -> None:
    for value in (least, MAX_DURATION, timedelta(seconds=2)):
        for given in (value, value.total_seconds()):
            fields = {"backoff_max": MAX_DURATION, name: given}
            chosen = SubscribeOptions(**fields)  # type: ignore[arg-type]
            assert getattr(chosen, name) == value


@pytest.mark.parametrize(("name", "least"), DURATIONS.items())
def test_a_duration_beyond_its_bounds_is_refused(name: str, least: timedelta) -> None:
    values = [
        least - MICROSECOND, (least - MICROSECOND).total_seconds(), MAX_DURATION + MICROSECOND,
        0, -1, timedelta(0), timedelta.min, timedelta.max, float("nan"), float("inf"), 10**5000,
    ]  # fmt: skip
    for value in values:
        bounds = rf"must be from {least.total_seconds()} s to 3,153,600,000 s$"
        with pytest.raises(InvalidOptionsError, match=f"^{name} .*{bounds}"):
            options(name, value)


@pytest.mark.parametrize("name", DURATIONS)
def test_a_duration_must_be_a_timedelta_or_a_number(name: str) -> None:
    for value in (True, "30s", "30", b"30", Decimal(30), [30]):
        with pytest.raises(InvalidOptionsError, match=f"^{name} .*timedelta or a number of sec"):
            options(name, value)


def test_durations_are_told_in_seconds() -> None:
    for value, told in ((timedelta(milliseconds=250), "0.25 s"), (0.25, "0.25")):
        with pytest.raises(InvalidOptionsError) as caught:
            options("lease_duration", value)
        assert str(caught.value) == f"lease_duration {told}: must be from 0.3 s to 3,153,600,000 s"


@pytest.mark.parametrize(
    ("base", "most", "why"),
    [
        (2, 1, "^backoff_base 2 s: must be at most backoff_max, 1 s$"),
        (1, 0.5, "^backoff_base 1 s: must be at most backoff_max, 0.5 s$"),
        (301, None, "^backoff_base 301 s: must be at most backoff_max, 300 s$"),
        (timedelta(hours=1), timedelta(minutes=1), "^backoff_base 3,600 s: .*, 60 s$"),
    ],
)
def test_the_first_delay_is_at_most_the_longest(base: Any, most: Any, why: str) -> None:
    with pytest.raises(InvalidOptionsError, match=why):
        SubscribeOptions(backoff_base=base, backoff_max=most)


def test_the_default_first_delay_gives_way_to_a_shorter_longest_one() -> None:
    for base in ({}, {"backoff_base": None}):
        quick = SubscribeOptions(backoff_max=0.1, **base)  # type: ignore[arg-type]
        assert quick.backoff(1, lambda: 0.0) == timedelta(seconds=0.05)
        assert dataclasses.replace(quick, concurrency=2).backoff_max == quick.backoff_max


# -- the rest ----------------------------------------------------------------------------------


def test_start_from_may_be_its_text() -> None:
    assert SubscribeOptions(start_from="earliest").start_from is StartFrom.EARLIEST  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["", "EARLIEST", "first", 0, True, ["latest"], {}])
def test_any_other_start_from_is_refused(value: object) -> None:
    with pytest.raises(InvalidOptionsError, match=r"^start_from .*'latest' or 'earliest'$"):
        options("start_from", value)


@pytest.mark.parametrize("value", ["", "a b", "é", "x" * 201, 5, b"dead"])
def test_a_dead_letter_topic_is_a_name(value: object) -> None:
    with pytest.raises(InvalidNameError, match=r"^dead_letter_topic "):
        options("dead_letter_topic", value)


def test_options_cannot_be_changed_but_copied_shared_and_pickled() -> None:
    chosen = SubscribeOptions(concurrency=2, lease_duration=1)  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        chosen.concurrency = 3  # type: ignore[misc]
    assert dataclasses.replace(chosen, concurrency=3).lease_duration == timedelta(seconds=1)
    with pytest.raises(InvalidOptionsError, match=r"^concurrency 0: "):
        dataclasses.replace(chosen, concurrency=0)
    copy = pickle.loads(pickle.dumps(chosen))  # noqa: S301
    assert copy == chosen
    assert hash(copy) == hash(chosen)


def test_an_unknown_or_a_positional_option_is_an_error() -> None:
    for arguments, fields in (((), {"concurency": 4}), ((4,), {})):
        with pytest.raises(TypeError):
            SubscribeOptions(*arguments, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "fields", "why"),
    [
        (SubscribeOptions(), {"concurrency": 2}, "not both .concurrency"),
        (SubscribeOptions(), {"lease_duration": 1, "batch_size": 1}, "batch_size, lease_duration"),
        ({"concurrency": 2}, {}, "must be a SubscribeOptions"),
        (4, {}, "must be a SubscribeOptions"),
        (None, {"concurency": 2}, r"^unknown option 'concurency' \(known: backoff_base, "),
        (None, {"concurrency": 0}, "^concurrency 0: must be from 1"),
    ],
)
def test_subscribe_refuses_wrong_options_before_anything_starts(
    given: Any, fields: dict[str, object], why: str
) -> None:
    with queue_lib.new_store_queue(MemoryStore()) as queue:
        with pytest.raises(InvalidOptionsError, match=why):
            queue.subscribe("orders", "billing", print, given, **fields)
        assert queue.health().subscriptions == ()
