"""Judges a history of a group that several processes share: was every promise kept?

Written from what the queue promises, not from how it works, and shares no code with it. A history
is the list of events that `worker` and `harness` wrote; see `Claim` for what they say.

A claim *entitles* its holder until its outcome was written or, without one, until the lease ends
that the store confirmed last. Whatever a process does after that proves nothing against the queue:
it was killed, stopped or starved, and somebody else may be at work. So exclusion, order and the cap
are judged on the entitled part of each run, exactly, whatever was killed.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

__all__ = ["Violation", "check"]

_Event = dict[str, Any]

_ROUNDING = 10_000_000  # ns: a database may keep time by the millisecond
_OUTCOMES = ("acked", "retried", "dead", "released")


@dataclass(frozen=True)
class Violation:
    """A promise that was broken."""

    rule: str
    """One of: lost, unknown, attempts, again, early, overlap, order, cap, dead, copies."""
    text: str
    events: Sequence[_Event] = field(repr=False)

    def __str__(self) -> str:
        lines = [f"{self.rule}: {self.text}", *map(json.dumps, self.events)]
        return "\n    ".join(lines)


@dataclass
class Claim:
    """One claim of a delivery, and the run of the handler under it."""

    token: str
    delivery: str
    id: str
    key: str
    n: int  # the message's number within its key
    pid: int
    attempt: int
    at: int  # when its holder knew of it
    lease: int
    confirmed: int  # the end of the lease that the store confirmed last
    start: int | None = None
    end: int | None = None
    result: str = ""  # returned, raised or doomed
    outcome: str = ""  # one of _OUTCOMES, as far as its holder lived to say so

    @property
    def span(self) -> tuple[int, int] | None:
        """The part of the run to which the lease entitled."""
        if self.start is None or self.start >= self.confirmed:
            return None
        return self.start, min(self.end or self.confirmed, self.confirmed)


class _History:
    def __init__(self, events: Iterable[_Event], group: str) -> None:
        self.events = sorted(events, key=lambda event: event["at"])
        self.offered: dict[str, tuple[str, int]] = {}
        self.published: set[str] = set()
        self.claims: dict[str, Claim] = {}
        self.by_delivery: dict[str, list[Claim]] = defaultdict(list)
        self.by_id: dict[str, list[Claim]] = defaultdict(list)
        self.killed: dict[int, int] = {}  # the process, and when it was surely gone
        self.lost: set[tuple[int, str | None]] = set()  # reported: process, delivery or any
        self.left: dict[str, str] = {}  # in the database at the end: message id, state
        self.copies: list[str] = []  # of which deliveries
        for event in self.events:
            self._read(event, group)
        for claims in self.by_delivery.values():
            # Not by when their holders knew of them: one may be stopped before it can say so.
            claims.sort(key=lambda claim: (claim.attempt, claim.at))

    def _read(self, event: _Event, group: str) -> None:
        kind = event["event"]
        claim = self.claims.get(event.get("token", ""))
        if kind == "offered":
            self.offered[event["id"]] = (event["key"], event["n"])
        elif kind == "published":
            self.published.add(event["id"])
        elif kind == "claimed" and event["group"] == group:
            names = ("token", "delivery", "id", "key", "n", "pid", "attempt", "at", "lease")
            ends = event["asked"] + event["lease"]
            claim = Claim(**{name: event[name] for name in names}, confirmed=ends)
            self.claims[claim.token] = claim
            self.by_delivery[claim.delivery].append(claim)
            self.by_id[claim.id].append(claim)
        elif kind == "killed":
            self.killed[event["victim"]] = event["at"]
        elif kind == "lost":
            self.lost.add((event["pid"], event["delivery"]))
        elif kind == "left" and event["group"] == group:
            self.left[event["id"]] = event["state"]
        elif kind == "copy" and event["group"] == group:
            self.copies.append(event["delivery"])
        elif claim is not None:
            self._read_of_claim(event, claim)

    def _read_of_claim(self, event: _Event, claim: Claim) -> None:
        kind = event["event"]
        if kind == "extended":
            claim.confirmed = max(claim.confirmed, event["asked"] + claim.lease)
        elif kind == "start":
            claim.start = event["at"]
        elif kind == "end":
            claim.end, claim.result = event["at"], event["outcome"]
        elif kind in _OUTCOMES:
            claim.outcome = kind

    def about(self, *claims: Claim) -> list[_Event]:
        """Return the events of deliveries, and the deaths of those who held them."""
        deliveries = {claim.delivery for claim in claims}
        pids = {claim.pid for claim in claims}
        return [
            event
            for event in self.events
            if event.get("delivery") in deliveries or event.get("victim") in pids
        ]

    def may_have_ended(self, claim: Claim) -> bool:
        """Say whether its holder died before it could say what became of it."""
        return not claim.outcome and claim.pid in self.killed


def check(
    events: Iterable[_Event], *, group: str, max_attempts: int, max_in_flight: int = 0
) -> list[Violation]:
    """Return the promises to a group that a history breaks."""
    history = _History(events, group)
    return [
        *_fates(history, max_attempts),
        *_runs(history, max_attempts),
        *_claimed_again(history),
        *_lanes(history),
        *_cap(history, max_in_flight),
        *_copies(history),
    ]


def _fates(history: _History, max_attempts: int) -> Iterator[Violation]:
    """Every acknowledged publish ends acknowledged by a consumer, or dead for a reason."""
    for id_ in sorted(history.published | set(history.left)):
        claims = history.by_id[id_]
        state = history.left.get(id_)
        events = history.about(*claims)
        acked = any(
            claim.outcome == "acked"
            or (claim.result == "returned" and history.may_have_ended(claim))
            for claim in claims
        )
        if state is None and not acked:
            yield Violation("lost", f"{id_} is gone, and nobody acknowledged it", events)
        elif state not in (None, "dead"):
            yield Violation("lost", f"{id_} is still {state}", events)
        elif state == "dead" and any(claim.outcome == "acked" for claim in claims):
            yield Violation("dead", f"{id_} is dead, and was acknowledged", events)
        elif state == "dead" and not any(
            (claim.outcome == "dead" or history.may_have_ended(claim))
            and (claim.attempt >= max_attempts or claim.result == "doomed")
            for claim in claims
        ):
            yield Violation("dead", f"{id_} is dead without a reason", events)


def _runs(history: _History, max_attempts: int) -> Iterator[Violation]:
    """Handlers get what was published, as it was, and never more often than allowed."""
    for claim in history.claims.values():
        if claim.start is None:
            continue
        if history.offered.get(claim.id) != (claim.key, claim.n):
            yield Violation("unknown", f"{claim.id} was never published", history.about(claim))
        if claim.attempt > max_attempts:
            yield Violation(
                "attempts", f"{claim.id} has run {claim.attempt} times", history.about(claim)
            )


def _claimed_again(history: _History) -> Iterator[Violation]:
    """A delivery is claimed again only when its claim was over, and counts its attempts."""
    for claims in history.by_delivery.values():
        for first, second in pairwise(claims):
            events = history.about(first)
            known = {(first.pid, first.delivery), (first.pid, None)} & history.lost
            if first.outcome in ("acked", "dead"):
                yield Violation("again", f"{first.id} is claimed after it was over", events)
            elif not (first.outcome or first.pid in history.killed or known):
                yield Violation("again", f"{first.id} is claimed again, why?", events)
            spends = first.outcome != "released"
            if second.attempt < first.attempt + spends:
                yield Violation(
                    "attempts", f"{first.id} is claimed again as attempt {second.attempt}", events
                )
            given_back = first.outcome in ("retried", "released")
            # A process may have died between writing an outcome and saying so.
            unsaid = history.may_have_ended(first) and first.end is not None
            if not (given_back or unsaid) and second.at < first.confirmed - _ROUNDING:
                yield Violation("early", f"the lease of {first.id} was still confirmed", events)


def _lanes(history: _History) -> Iterator[Violation]:
    """Of one key one message runs at a time, in the order of the publishes."""
    lanes: dict[str, list[Claim]] = defaultdict(list)
    for claim in history.claims.values():
        if claim.key and claim.span:
            lanes[claim.key].append(claim)
    for lane in lanes.values():
        lane.sort(key=lambda claim: claim.span or (0, 0))
        for first, second in pairwise(lane):
            if first.span and second.span and second.span[0] < first.span[1]:
                events = history.about(first, second)
                yield Violation("overlap", f"{first.id} and {second.id} run at once", events)
            if second.n < first.n:
                events = history.about(first, second)
                yield Violation("order", f"{second.id} runs after {first.id}", events)
        completed: dict[int, Claim] = {}
        for claim in sorted(lane, key=lambda claim: claim.end or 0):
            within = claim.end is not None and claim.end <= claim.confirmed
            if claim.result == "returned" and within:
                completed.setdefault(claim.n, claim)
        for first, second in pairwise(completed.values()):
            if second.n < first.n:
                events = history.about(first, second)
                yield Violation("order", f"{second.id} is completed after {first.id}", events)


def _cap(history: _History, max_in_flight: int) -> Iterator[Violation]:
    """Never do more runs than the cap go on at once."""
    steps = []
    for claim in history.claims.values():
        if claim.span:
            steps += [(claim.span[0], 1, claim), (claim.span[1], -1, claim)]
    running: dict[str, Claim] = {}
    for _, step, claim in sorted(steps, key=lambda step: step[:2]):  # an end before a start
        if step < 0:
            running.pop(claim.token, None)
            continue
        running[claim.token] = claim
        if 0 < max_in_flight < len(running):
            events = history.about(*running.values())
            yield Violation("cap", f"{len(running)} are in flight", events)
            return


def _copies(history: _History) -> Iterator[Violation]:
    """Every dead delivery has one dead-letter copy, and no other has one."""
    dead = [
        claims[0].delivery
        for claims in history.by_delivery.values()
        if history.left.get(claims[0].id) == "dead"
    ]
    found = Counter(history.copies)
    for delivery in sorted({*dead, *found}):
        if found[delivery] != (delivery in dead):
            claims = history.by_delivery[delivery]
            yield Violation(
                "copies", f"{delivery} has {found[delivery]} copies", history.about(*claims)
            )
