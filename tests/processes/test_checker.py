"""The checker itself: it accepts a sound history, and rejects each that breaks one promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.processes.checker import check

LEASE = 500
CAP = 2
ATTEMPTS = 2


class Forger:
    """Writes a history by hand. Instants and durations are in milliseconds."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, event: str, at: float, pid: int = 1, **fields: Any) -> None:
        instants: dict[str, Any] = {
            name: int(fields[name] * 1e6) for name in ("asked", "lease") if name in fields
        }
        self.events.append({"event": event, "at": int(at * 1e6), "pid": pid, **fields, **instants})

    def offer(self, id: str, *, acknowledged: bool = True) -> None:
        """Publish a message named after its key and its number in that: k0; without one: -0."""
        self.add("offered", 0, id=id, key=id[0].strip("-"), n=int(id[1:]))
        if acknowledged:
            self.add("published", 0, id=id)

    def claim(self, id: str, at: float, pid: int = 1, attempt: int = 1) -> None:
        self.add(
            "claimed", at, pid, **self.names(id, pid, attempt), group="g", id=id,
            key=id[0].strip("-"), n=int(id[1:]), attempt=attempt, asked=at, lease=LEASE,
        )  # fmt: skip

    def start(self, id: str, at: float, pid: int = 1, attempt: int = 1) -> None:
        self.claim(id, at, pid, attempt)
        self.add(
            "start", at, pid, **self.names(id, pid, attempt), group="g", id=id,
            key=id[0].strip("-"), n=int(id[1:]), attempt=attempt,
        )  # fmt: skip

    def tell(self, event: str, id: str, at: float, pid: int = 1, attempt: int = 1, **more: Any):
        self.add(event, at, pid, **self.names(id, pid, attempt), asked=at, **more)

    def end(self, id: str, at: float, pid: int = 1, attempt: int = 1, outcome: str = "returned"):
        self.tell("end", id, at, pid, attempt, outcome=outcome)

    def run(
        self, id: str, began: float, ended: float, pid: int = 1, attempt: int = 1,
        outcome: str = "returned",
    ) -> None:  # fmt: skip
        """Handle a message from one instant to another, and write its outcome."""
        self.start(id, began, pid, attempt)
        self.end(id, ended, pid, attempt, outcome)
        self.tell({"returned": "acked", "raised": "retried"}[outcome], id, ended, pid, attempt)

    def leave(self, id: str, state: str, copies: int = 1) -> None:
        self.add("left", 9000, group="g", id=id, state=state)
        for _ in range(copies):
            self.add("copy", 9000, group="g", delivery=f"d-{id}")

    @staticmethod
    def names(id: str, pid: int, attempt: int) -> dict[str, str]:
        return {"token": f"t-{id}-{pid}-{attempt}", "delivery": f"d-{id}"}

    def broken(self) -> set[str]:
        """Return the rules that the history breaks."""
        found = check(self.events, group="g", max_attempts=ATTEMPTS, max_in_flight=CAP)
        assert all(str(violation) for violation in found)
        return {violation.rule for violation in found}


@pytest.fixture
def forger() -> Forger:
    """A sound history, with every excuse that there is."""
    forger = Forger()
    for id in ("k0", "k1", "k2", "-0", "-1", "-2", "-3"):
        forger.offer(id)
    forger.offer("-9", acknowledged=False)  # and never stored
    # A failure, and the next of its key after the retry.
    forger.run("k0", 0, 10, outcome="raised")
    forger.run("k0", 20, 30, pid=2, attempt=2)
    forger.run("k1", 30, 40)
    # Killed after the handler returned: done twice, the second time after the lease.
    forger.start("k2", 50)
    forger.tell("extended", "k2", 200)
    forger.end("k2", 210)
    forger.add("killed", 220, victim=1)
    forger.run("k2", 701, 710, pid=2, attempt=2)
    # A lost lease that was reported: its run goes on beside the other, and is void.
    forger.start("-0", 50, pid=3)
    forger.run("-0", 560, 600, pid=2, attempt=2)
    forger.add("lost", 610, 3, delivery="d--0")
    forger.end("-0", 620, pid=3)
    # Given back, then dead of a verdict; and dead of killing whoever runs it.
    forger.start("-1", 800, pid=3)
    forger.tell("released", "-1", 810, pid=3)
    forger.start("-1", 811, pid=2)
    forger.end("-1", 820, pid=2, outcome="doomed")
    forger.tell("dead", "-1", 830, pid=2)
    forger.leave("-1", "dead")
    for attempt, pid in ((1, 4), (2, 5)):
        forger.start("-2", attempt * 1000, pid, attempt)
        forger.add("killed", attempt * 1000 + 10, victim=pid)
    forger.claim("-2", 3000, 2, attempt=3)
    forger.tell("dead", "-2", 3001, 2, attempt=3)
    forger.leave("-2", "dead")
    # Killed between the acknowledgement and saying so.
    forger.start("-3", 3100, 6)
    forger.end("-3", 3110, 6)
    forger.add("killed", 3120, victim=6)
    return forger


def test_a_sound_history_is_accepted(forger: Forger):
    assert forger.broken() == set()


def test_an_empty_history_is_accepted():
    assert Forger().broken() == set()


def gone(forger: Forger) -> None:
    forger.offer("-4")


def dropped_by_a_failed_run(forger: Forger) -> None:
    forger.offer("-4")
    forger.run("-4", 4000, 4010, outcome="raised")


def still_there(forger: Forger) -> None:
    forger.offer("-4")
    forger.leave("-4", "alive", copies=0)


def acknowledged_but_there(forger: Forger) -> None:
    forger.offer("-4")
    forger.run("-4", 4000, 4010)
    forger.leave("-4", "dead")


def never_published(forger: Forger) -> None:
    forger.run("-4", 4000, 4010)


def changed_on_the_way(forger: Forger) -> None:
    forger.add("offered", 0, id="-4", key="", n=5)
    forger.add("published", 0, id="-4")
    forger.run("-4", 4000, 4010)


def one_attempt_too_many(forger: Forger) -> None:
    forger.offer("-4")
    for attempt in (1, 2):
        forger.run("-4", 4000 * attempt, 4000 * attempt + 1, attempt=attempt, outcome="raised")
    forger.run("-4", 12_000, 12_001, attempt=3)


def an_attempt_not_counted(forger: Forger) -> None:
    forger.offer("-4")
    forger.run("-4", 4000, 4010, pid=7, outcome="raised")
    forger.run("-4", 4020, 4030, pid=8)


def run_again_after_its_acknowledgement(forger: Forger) -> None:
    forger.offer("-4")
    forger.run("-4", 4000, 4010)
    forger.run("-4", 5000, 5010, pid=2, attempt=2)


def run_again_after_its_death(forger: Forger) -> None:
    forger.offer("-4")
    forger.start("-4", 4000)
    forger.end("-4", 4010, outcome="doomed")
    forger.tell("dead", "-4", 4020)
    forger.run("-4", 5000, 5010, pid=2, attempt=2)


def run_again_for_no_reason(forger: Forger) -> None:
    forger.offer("-4")
    forger.start("-4", 4000, 7)
    forger.end("-4", 4010, 7)
    forger.run("-4", 5000, 5010, pid=2, attempt=2)


def a_loss_of_something_else(forger: Forger) -> None:
    run_again_for_no_reason(forger)
    forger.add("lost", 5020, 7, delivery="d-k0")


def taken_before_its_lease_ended(forger: Forger) -> None:
    forger.offer("-4")
    forger.start("-4", 4000, 7)
    forger.tell("extended", "-4", 4300, 7)
    forger.add("killed", 4310, victim=7)
    forger.run("-4", 4510, 4520, pid=2, attempt=2)


def two_of_a_key_at_once(forger: Forger) -> None:
    forger.offer("l0")
    forger.offer("l1")
    forger.run("l0", 4000, 4010)
    forger.run("l1", 4009, 4020, pid=2)


def beside_a_killed_one_of_its_key(forger: Forger) -> None:
    forger.offer("l0")
    forger.offer("l1")
    forger.start("l0", 4000, 7)
    forger.add("killed", 4100, victim=7)
    forger.run("l1", 4200, 4210, pid=2)
    forger.run("l0", 4510, 4520, pid=2, attempt=2)


def out_of_order(forger: Forger) -> None:
    forger.offer("l0")
    forger.offer("l1")
    forger.run("l1", 4000, 4010)
    forger.run("l0", 4020, 4030)


def overtaken_during_its_backoff(forger: Forger) -> None:
    forger.offer("l0")
    forger.offer("l1")
    forger.run("l0", 4000, 4010, outcome="raised")
    forger.run("l1", 4020, 4030)
    forger.run("l0", 4040, 4050, pid=2, attempt=2)


def above_the_cap(forger: Forger) -> None:
    for number in range(4, 5 + CAP):
        forger.offer(f"-{number}")
        forger.run(f"-{number}", 4000 + number, 4100)


def dead_too_early(forger: Forger) -> None:
    forger.offer("-4")
    forger.start("-4", 4000)
    forger.end("-4", 4010, outcome="raised")
    forger.tell("dead", "-4", 4020)
    forger.leave("-4", "dead")


def a_copy_twice(forger: Forger) -> None:
    forger.leave("-1", "dead")


def no_copy(forger: Forger) -> None:
    forger.events = [event for event in forger.events if event["event"] != "copy"]


def a_copy_of_a_living_one(forger: Forger) -> None:
    forger.add("copy", 9000, group="g", delivery="d-k0")


@pytest.mark.parametrize(
    ("forge", "rules"),
    [
        (gone, "lost"),
        (dropped_by_a_failed_run, "lost"),
        (still_there, "lost"),
        (acknowledged_but_there, "dead"),
        (never_published, "unknown"),
        (changed_on_the_way, "unknown"),
        (one_attempt_too_many, "attempts"),
        (an_attempt_not_counted, "attempts"),
        (run_again_after_its_acknowledgement, "again"),
        (run_again_after_its_death, "again"),
        (run_again_for_no_reason, "again"),
        (a_loss_of_something_else, "again"),
        (taken_before_its_lease_ended, "early"),
        (two_of_a_key_at_once, "overlap"),
        (beside_a_killed_one_of_its_key, "overlap order"),
        (out_of_order, "order"),
        (overtaken_during_its_backoff, "order"),
        (above_the_cap, "cap"),
        (dead_too_early, "dead"),
        (a_copy_twice, "copies"),
        (no_copy, "copies"),
        (a_copy_of_a_living_one, "copies"),
    ],
)
def test_a_broken_promise_is_found(forger: Forger, forge: Callable[[Forger], None], rules: str):
    forge(forger)
    assert forger.broken() == set(rules.split())


def test_other_groups_are_judged_apart(forger: Forger):
    forger.events = [
        event | ({"group": "other"} if "group" in event else {}) for event in forger.events
    ]
    found = check(forger.events, group="g", max_attempts=ATTEMPTS)
    assert {violation.rule for violation in found} == {"lost"}  # nobody of the group had anything
