"""The memory store: everything that every store passes, and what only this one promises."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from queue_lib.stores.memory import MemoryStore
from queue_lib.testing.clock import ManualClock
from queue_lib.testing.conformance import StoreConformance


class TestMemoryStore(StoreConformance):
    capabilities: ClassVar[frozenset[str]] = frozenset({"clock", "detailed_stats"})

    def make_store(self, clock: ManualClock, tmp_path: Path) -> MemoryStore:
        return MemoryStore(clock)
