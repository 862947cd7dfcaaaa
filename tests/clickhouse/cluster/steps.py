"""Words that these tests share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from queue_lib.errors import StoreUnavailableError

__all__ = ["NAMES", "again", "ids"]

T = TypeVar("T")

NAMES = ["m0", "m1", "m2", "m3"]
"""The messages that are there when a test begins."""


def ids(claims: list[Any]) -> list[str]:
    return [found.message.id for found in claims]


def again(operate: Callable[[], T]) -> T:
    """Do it until it is done, as the engine and producers do."""
    for _ in range(200):
        try:
            return operate()
        except StoreUnavailableError:
            time.sleep(0.02)
    return operate()
