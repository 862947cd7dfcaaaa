"""The package's own tests: the suite that every store passes."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from plain_store import PlainStore

from queue_lib.testing.clock import ManualClock
from queue_lib.testing.conformance import StoreConformance


class TestPlainStore(StoreConformance):
    capabilities: ClassVar[frozenset[str]] = frozenset({"clock"})

    def make_store(self, clock: ManualClock, tmp_path: Path) -> PlainStore:
        return PlainStore(clock)
