"""The ends of a claim, and its renewal: one INSERT each, for those that are still held."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from queue_lib.stores.clickhouse.group import Entry, Group, Lease, Rows, load_group
from queue_lib.stores.clickhouse.turns import Turn

__all__ = ["Held", "acknowledge", "bury", "change", "extend", "requeue"]

Held = tuple[int, str]
"""A claim: its seq, and the token of its lease."""

Change = Callable[[Turn[Group], Group, Rows, list[Lease]], None]


def change(
    turn: Turn[Group],
    topic: str,
    name: str,
    claims: Sequence[Held],
    work: Change,
    *,
    alive: bool = False,
) -> set[int]:
    """Do `work` for the claims that hold; return their seqs. `alive`: and have not run out."""
    group = load_group(turn, topic, name)
    if group is None:
        return set()
    now = turn.clock.earliest()
    held = {
        seq: lease
        for seq, token in claims
        if (lease := group.leased.get(seq)) is not None
        and lease.token == token
        and (not alive or lease.end >= now)
    }
    if held:
        group.know_lanes(turn, {lease.key for lease in held.values() if lease.key})
        # Windows must know where they end before a row is written that they do not have.
        group.ready.first(turn, group)
        group.timers.first(turn, group)
        rows = Rows(turn, group)
        work(turn, group, rows, list(held.values()))
        rows.insert()
    return set(held)


def acknowledge(turn: Turn[Group], group: Group, rows: Rows, leases: list[Lease]) -> None:
    """Complete deliveries."""
    now = turn.clock.latest()
    for lease in leases:
        _end(turn, group, rows, lease, now)


def bury(error: str) -> Change:
    """Dead-letter deliveries."""

    def work(turn: Turn[Group], group: Group, rows: Rows, leases: list[Lease]) -> None:
        now = turn.clock.latest()
        for lease in leases:
            rows.dead(lease, now, error)
            _end(turn, group, rows, lease, now)

    return work


def requeue(backoff: int, error: str | None, spend: int) -> Change:
    """Give deliveries back, due in `backoff` µs; `error` `None` keeps the one that is there."""

    def work(turn: Turn[Group], group: Group, rows: Rows, leases: list[Lease]) -> None:
        due = turn.clock.latest() + backoff
        for lease in leases:
            rows.not_leased(lease.seq)
            del group.leased[lease.seq]
            entry = Entry(
                lease.seq, lease.key, lease.prio, due, lease.attempts + spend,
                lease.error if error is None else error,
            )  # fmt: skip
            if backoff:
                rows.timer(entry)
                group.timers.add(entry)
            else:
                rows.ready(entry)
                group.ready.add(entry)

    return work


def extend(duration: int) -> Change:
    """Renew leases to `duration` µs from now."""

    def work(turn: Turn[Group], group: Group, rows: Rows, leases: list[Lease]) -> None:
        end = turn.clock.latest() + duration
        for lease in leases:
            lease.end = end
            rows.leased(lease)

    return work


def _end(turn: Turn[Group], group: Group, rows: Rows, lease: Lease, now: int) -> None:
    """Take a delivery out of its lane, and let the next one come forward."""
    rows.not_leased(lease.seq, ended=now)
    del group.leased[lease.seq]
    if not lease.key:
        return
    rows.not_in_lane(lease.key, lease.seq)
    group.lanes[lease.key].remove(lease.seq)
    head = group.next_in_lane(turn, lease.key, lease.seq)
    if head is None:
        return
    seq, prio, due = head
    if seq in group.pins:
        group.pins.remove(seq)
        rows.group()
    if due > now:
        entry = Entry(seq, lease.key, prio, due)
        rows.timer(entry)
        group.timers.add(entry)
    else:
        entry = Entry(seq, lease.key, prio, now)
        rows.ready(entry)
        group.ready.add(entry)
