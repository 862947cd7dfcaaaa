"""Every case, the cheap ones first: its name, what measures it, on which stores, and how long."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from benchmarks.bench import CLICKHOUSE, SQL, Case
from benchmarks.cases import (
    backlog,
    drain,
    footprint,
    idle,
    latency,
    lifetime,
    peers,
    publish,
    upkeep,
)
from benchmarks.peers import PEERS

__all__ = ["CASES", "choose"]

CASES = (
    Case("publish 1", partial(publish.publish, batch=1)),
    Case("publish 1, threads", publish.publish_together),
    Case("publish 100", partial(publish.publish, batch=100)),
    Case("publish 1000", partial(publish.publish, batch=1000)),
    Case("publish 1000 to 2", partial(publish.publish, batch=1000, groups=2)),
    Case("publish 1, notify", publish.notifications, ("postgres",)),
    Case("claim and ack", drain.claim_and_ack),
    Case("drain 4", partial(drain.drain_at, concurrency=4), SQL),
    Case("drain 64", partial(drain.drain_at, concurrency=64)),
    Case("drain 256", partial(drain.drain_at, concurrency=256)),
    Case("drain keyed", drain.drain_keyed),
    Case("drain processes", drain.drain_processes),
    Case("latency same", partial(latency.latency, other_process=False)),
    Case("latency other", partial(latency.latency, other_process=True)),
    Case("idle poll", idle.empty_poll),
    Case("idle subscriptions", partial(idle.subscriptions, wake=True)),
    Case("idle subscriptions, no wake-ups", partial(idle.subscriptions, wake=False), SQL),
    Case("idle herd", idle.herd, SQL),
    Case("bytes", footprint.bytes_per_message, SQL),
    Case("parts", footprint.parts, CLICKHOUSE),
    *(
        Case(f"backlog {shape}", partial(backlog.claim_at_backlog, shape=shape))
        for shape in backlog.SHAPES
    ),
    Case("backlog behind dead rows", backlog.behind_dead_rows, ("postgres",)),
    Case("backlog behind finished", backlog.behind_finished, CLICKHOUSE),
    Case("lifetime, many", lifetime.after_many, group="long"),
    Case("lifetime, held open", lifetime.while_held_open, SQL, group="long"),
    Case("stats", upkeep.stats, group="long"),
    Case("memory", footprint.memory, group="long"),
    Case("purge", upkeep.purge, group="long"),
    Case("bloat", footprint.bloat, group="long"),
    *(
        Case(f"peer {peer}", partial(peers.measure, peer=peer), (kind,), "peers")
        for kind, names in PEERS.items()
        for peer in names
    ),
)


def choose(kind: str, only: str = "", groups: Collection[str] = ("quick",)) -> list[Case]:
    """Return the cases of a kind of store: of these groups, or all whose name contains `only`."""
    return [
        case
        for case in CASES
        if kind in case.kinds and (only in case.name if only else case.group in groups)
    ]
