"""How much is measured, and what a measurement is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["Figure", "Size", "size_for"]


@dataclass(frozen=True)
class Size:
    """How much of everything. The cases of the group `long` are below the line."""

    smoke: bool = False
    """As little as shows that it runs; the peers have such sizes of their own."""
    rounds: int = 5
    """How often store and reference take turns."""
    publishes: int = 300
    """Single publishes a round."""
    batches: int = 10
    """Calls a round where one call publishes many."""
    threads: int = 16
    publishers: int = 32
    instances: int = 4
    """Queues of their own that those publishers, or the idle consumers, are spread over."""
    drain: int = 10_000
    claims: int = 40
    latencies: int = 200
    processes: tuple[int, ...] = (1, 4, 8, 16)
    shared: int = 40_000
    """Messages that those processes share."""
    backlogs: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    in_front: tuple[int, int] = (500_000, 1_000_000)
    """Rows in front of a backlog: scheduled, and of another group."""
    dead: int = 200_000
    """Rows that a transaction keeps from being removed."""
    subscriptions: int = 50
    consumers: int = 100
    trickle: int = 10
    """Messages a second for those consumers."""
    idle_seconds: float = 10

    parts_seconds: float = 30
    """How long parts are counted on ClickHouse."""

    # -- long ----------------------------------------------------------------------------------

    through: int = 1_000_000
    """Messages that have gone through before throughput is measured again."""
    finished: int = 5_000_000
    purged: int = 5_000_000
    pending: int = 1_000_000
    drained: int = 200_000
    """How many of those are drained while memory is watched."""
    rate: int = 1_000
    """Messages a second of steady traffic."""
    minutes: float = 2
    """How long there is steady traffic, and a transaction is held open."""


_SMOKE = Size(
    smoke=True,
    rounds=2,
    publishes=16,
    batches=2,
    threads=4,
    publishers=4,
    instances=2,
    drain=200,
    claims=4,
    latencies=5,
    processes=(1, 2),
    shared=200,
    backlogs=(400, 800),
    in_front=(300, 300),
    dead=1_000,
    subscriptions=5,
    consumers=6,
    idle_seconds=1.5,
    parts_seconds=1,
    through=1_000,
    finished=2_500,
    purged=2_500,
    pending=1_000,
    drained=400,
    rate=200,
    minutes=0.03,
)


def size_for(kind: str, *, smoke: bool = False, minutes: float | None = None) -> Size:
    """Return the sizes for a kind of store: of what takes ClickHouse long, there is less."""
    size = _SMOKE if smoke else Size()
    if kind.startswith("clickhouse"):
        size = replace(
            size,
            publishes=size.publishes // 4,
            latencies=size.latencies // 4,
            shared=size.shared // 4,
            rate=size.rate // 10,
            purged=size.purged // 50,
        )
    return size if minutes is None else replace(size, minutes=minutes)


@dataclass
class Figure:
    """One measured line."""

    name: str
    unit: str
    value: float
    reference: float | None = None
    against: str = "floor"
    """What the reference is."""
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Measured through reference: above 1 is better for a rate, and worse for a time."""
        return self.value / self.reference if self.reference else None

    def row(self, kind: str) -> str:
        """Render a row of the Markdown table."""
        value = f"{_short(self.value)} {self.unit}".strip()
        reference = "" if self.reference is None else f"{_short(self.reference)} ({self.against})"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        more = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.more.items())
        return f"| {kind} | {self.name} | {value} | {reference} | {ratio} | {more} |"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
