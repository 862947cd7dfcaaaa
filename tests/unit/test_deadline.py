"""The timeout of a close: a duration like every other, or none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from queue_lib import InvalidOptionsError, Message, new_store_queue
from queue_lib.durations import MAX_DURATION
from queue_lib.engine.lifecycle import Deadline
from queue_lib.stores.memory import MemoryStore

WRONG = [
    "x", "1", b"1", Decimal(1), [1], True, False, 10**400, -(10**400), float("nan"), float("inf"),
    float("-inf"), -1, -0.001, timedelta(microseconds=-1), timedelta.max,
    MAX_DURATION + timedelta(microseconds=1),
]  # fmt: skip


@pytest.mark.parametrize("timeout", WRONG, ids=lambda value: type(value).__name__)
def test_what_is_no_timeout_closes_nothing(timeout: Any) -> None:
    with new_store_queue(MemoryStore()) as queue:
        subscription = queue.subscribe("orders", "billing", print)
        closers: list[Callable[[Any], bool]] = [subscription.close, queue.close]
        for close in closers:
            with pytest.raises(InvalidOptionsError, match=r"^timeout .*: must be ") as caught:
                close(timeout)
            assert len(str(caught.value)) < 250
        assert queue.health().subscriptions[0].running
        queue.publish(Message("orders"))


@pytest.mark.parametrize("timeout", [-1, timedelta(seconds=-1)])
def test_a_negative_timeout_is_told_the_bounds(timeout: Any) -> None:
    with pytest.raises(InvalidOptionsError, match=r"^timeout -1.*: must be from 0 s to 3,153,600,"):
        Deadline(timeout)


@pytest.mark.parametrize("timeout", [0, 0.0, timedelta(0), 5, 0.5, timedelta(days=1), MAX_DURATION])
def test_a_duration_is_a_timeout(timeout: Any) -> None:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    left = Deadline(timeout).left()
    assert left is not None
    assert seconds - 5 < left <= seconds


def test_no_timeout_never_ends() -> None:
    assert Deadline(None).left() is None
