"""Every store agrees with the reference model, over arbitrary histories."""

from __future__ import annotations

from queue_lib.stores.memory import MemoryStore
from queue_lib.testing.machine import check_against_model


def test_memory_agrees_with_the_model() -> None:
    check_against_model(MemoryStore)
