"""What a case is, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from benchmarks.databases import KINDS, Host, Site
from benchmarks.figures import Figure, Size

__all__ = ["CLICKHOUSE", "SQL", "Bench", "Case"]

SQL = ("sqlite", "postgres")
CLICKHOUSE = ("clickhouse", "clickhouse-http")


@dataclass(frozen=True)
class Bench:
    """One run on one kind of store."""

    kind: str
    host: Host
    size: Size

    def site(self, *, shared: bool = False) -> AbstractContextManager[Site]:
        """Make an empty database for a block. `shared`: other processes will work on it, too."""
        return self.host.site(shared=shared)


@dataclass(frozen=True)
class Case:
    """Something to measure."""

    name: str
    measure: Callable[[Bench], Iterator[Figure]]
    kinds: tuple[str, ...] = KINDS
    group: str = "quick"
    """Or `long`, which takes minutes, or `peers`: those only on demand."""
