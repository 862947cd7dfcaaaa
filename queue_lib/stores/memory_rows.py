"""What `MemoryStore` keeps: messages, and each group's deliveries where operations find them.

Nothing in here knows of locks, clocks or claims; the store calls it with its lock held.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import TypeVar

from queue_lib.message import Message

__all__ = ["CLAIMABLE", "Delivery", "Group", "Heap", "State", "Stored", "Topic"]

T = TypeVar("T")

Heap = list[tuple[int, int, T]]
"""By an instant, then by seq."""


class State(IntEnum):
    """Where a delivery is, and what its `at` means there."""

    ABSENT = 0  # not made yet, completed, or purged
    READY = 1  # since when it may be claimed
    SCHEDULED = 2  # when it becomes due
    RETRYING = 3  # when it becomes due
    WAITING = 4  # behind its lane's head; `at` means nothing
    LEASED = 5  # the end of the lease
    EXPIRED = 6  # the end of the lease: anybody may claim it, its claim still holds it
    DEAD = 7  # when it died


CLAIMABLE = frozenset((State.READY, State.EXPIRED))


class Topic:
    """A topic: who listens, and what was published."""

    __slots__ = ("groups", "messages")

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.messages: dict[int, Stored] = {}  # retained, by seq, in publish order


class Group:
    """A consumer group's deliveries, each where the next operation on it looks first."""

    __slots__ = ("counts", "lanes", "leases", "name", "ready", "timers")

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts = [0] * len(State)  # ABSENT's means nothing
        self.ready: list[tuple[int, int, Delivery]] = []  # heap by (priority, seq)
        self.timers: Heap[Delivery] = []  # scheduled and retrying, by when they become due
        self.leases: Heap[Delivery] = []  # by end; entries of settled leases are skipped
        self.lanes: dict[str, deque[Delivery]] = {}  # by key: the head, then who waits behind it

    def add(self, stored: Stored, now: int) -> None:
        """Make the delivery of a message that is younger than all the others."""
        delivery = Delivery(stored, self)
        stored.deliveries += 1
        stored.resting = None
        if key := stored.message.key:
            lane = self.lanes.setdefault(key, deque())
            lane.append(delivery)
            if len(lane) > 1:
                delivery.move(State.WAITING, now)
                return
        delivery.come_forward(now)

    def catch_up(self, now: int) -> None:
        """Move what became due, and the leases that ran out, to where claims look."""
        while self.timers and self.timers[0][0] <= now:
            delivery = heappop(self.timers)[-1]
            delivery.move(State.READY, delivery.at)
        while self.leases and self.leases[0][0] < now:
            end, _, delivery = heappop(self.leases)
            if _is_lease(end, delivery):
                delivery.move(State.EXPIRED, end)

    def compact(self) -> None:
        """Sweep settled and extended leases out before they outnumber the live ones."""
        if len(self.leases) > 2 * self.counts[State.LEASED] + 100:
            self.leases = [entry for entry in self.leases if _is_lease(entry[0], entry[-1])]
            heapify(self.leases)


@dataclass(slots=True, eq=False)
class Stored:
    """A retained message."""

    message: Message
    seq: int
    due: int  # its own schedule; 0: at once
    ages_from: int
    deliveries: int = 0  # how many need it
    resting: Heap[Stored] | None = None  # where its purge is looked for

    def rest_in(self, heap: Heap[Stored]) -> None:
        self.resting = heap
        heappush(heap, (self.ages_from, self.seq, self))


@dataclass(slots=True, eq=False)
class Delivery:
    """A message's delivery to one group."""

    stored: Stored
    group: Group
    state: State = State.ABSENT
    at: int = 0
    attempts: int = 0  # spent
    token: str = ""  # empty unless leased, expired or not
    error: str = ""

    def come_forward(self, now: int) -> None:
        due = max(self.stored.due, now)
        self.move(State.READY if due == now else State.SCHEDULED, due)

    def move(self, state: State, at: int) -> None:
        group, seq = self.group, self.stored.seq
        group.counts[self.state] -= 1
        group.counts[state] += 1
        self.state, self.at = state, at
        if state in CLAIMABLE:
            heappush(group.ready, (self.stored.message.priority, seq, self))
        elif state is State.LEASED:
            heappush(group.leases, (at, seq, self))
            group.compact()
        elif state is State.SCHEDULED or state is State.RETRYING:
            heappush(group.timers, (at, seq, self))


def _is_lease(end: int, delivery: Delivery) -> bool:
    return delivery.state is State.LEASED and delivery.at == end
