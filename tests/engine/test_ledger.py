"""The ledger alone: each outcome has one owner, and nobody waits for itself."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from queue_lib import Claimed, Message
from queue_lib.engine.ledger import Ledger
from queue_lib.engine.run import Run
from queue_lib.testing.conformance.case import together
from tests.engine.harness import DEADLINE, eventually, in_thread

pytestmark = pytest.mark.usefixtures("eager_switches")


def run(number: int = 0) -> Run:
    return Run(Claimed(f"d{number}", f"token{number}", "g", 1, Message("t")), time.monotonic())


@pytest.mark.parametrize("repetition", range(50))
def test_a_handler_a_lost_lease_and_a_close_race_and_one_of_them_wins(repetition: int) -> None:
    ledger = Ledger()
    runs = [run(number) for number in range(40)]
    ledger.add(runs)
    won: Counter[Run] = Counter()

    def handle() -> None:
        for item in runs:
            if ledger.start(item) and ledger.end(item):
                won[item] += 1
                ledger.settled([item])

    def lose() -> None:
        won.update(item for item in reversed(runs) if ledger.lose(item))

    def abandon() -> None:
        won.update(ledger.abandon())

    sides = [handle, lose, abandon]
    together(3, lambda number: sides[number]())
    assert won == Counter(runs)
    assert len(ledger) == 0
    assert ledger.wait_empty(DEADLINE)


@pytest.mark.parametrize("repetition", range(50))
def test_a_waiting_run_is_started_or_dropped_never_both(repetition: int) -> None:
    ledger = Ledger()
    runs = [run(number) for number in range(40)]
    ledger.add(runs)
    started: list[Run] = []
    dropped: list[Run] = []

    def start() -> None:
        started.extend(item for item in runs if ledger.start(item))

    def drop() -> None:
        dropped.extend(ledger.drop_waiting())

    sides = [start, drop]
    together(2, lambda number: sides[number]())
    assert sorted(started + dropped, key=runs.index) == runs


def test_a_handler_does_not_wait_for_itself_but_everybody_else_waits_for_it() -> None:
    ledger, item = Ledger(), run()
    ledger.add([item])
    closed, go, answers = threading.Event(), threading.Event(), []

    def handle() -> None:
        ledger.start(item)
        answers.append(ledger.wait_empty(DEADLINE))
        closed.set()
        go.wait(DEADLINE)
        ledger.end(item)
        ledger.settled([item])

    with in_thread(handle):
        assert closed.wait(DEADLINE)
        assert answers == [True]
        assert not ledger.wait_empty(0.01), "a handler that closed is still running"
        go.set()
        assert ledger.wait_empty(DEADLINE)


def test_a_handler_that_closes_is_not_confused_by_the_last_run_of_its_thread() -> None:
    """The last run waits for its acknowledgement; that comes while the next one closes."""
    ledger, first, second, other = Ledger(), run(1), run(2), run(3)
    ledger.add([first, second, other])
    answers: list[bool] = []

    def handle() -> None:
        ledger.start(first)
        ledger.end(first)
        ledger.start(second)
        answers.append(ledger.wait_empty(DEADLINE))
        ledger.end(second)
        ledger.settled([second])

    with in_thread(handle):
        eventually(lambda: ledger._closers)
        ledger.settled([first])
        ledger.settled([other])  # what the handler waits for, too
    assert answers == [True]


def test_a_delivery_that_is_claimed_again_has_left_its_earlier_run() -> None:
    ledger = Ledger()
    early, late = run(), Run(Claimed("d0", "another", "g", 2, Message("t")), time.monotonic())
    assert ledger.add([early]) == []
    assert ledger.add([late]) == [early]
    assert early.cancelled.reason == "lease lost"
    assert ledger.renewable() == [late]
    assert not ledger.start(early)  # it is void …
    assert len(ledger) == 1  # … and only its slot is free
