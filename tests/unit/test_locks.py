"""What lockers are made of: signals that look at the clock, and turns. (The suite of lockers does
the rest: `tests/lockers/`.)
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from queue_lib import ProcessLocker
from queue_lib.locks import LossSignal, Turns

AT_ONCE = timedelta(0)
DEADLINE = 10.0

# -- signals ---------------------------------------------------------------------------------------


def test_a_signal_is_set_by_whoever_sets_it_or_by_the_clock() -> None:
    assert not LossSignal(math.inf).is_set()
    assert not LossSignal(time.monotonic() + DEADLINE).is_set()
    assert LossSignal(time.monotonic()).is_set()
    signal = LossSignal(math.inf)
    signal.set()
    assert signal.is_set()
    assert signal.wait(0)


def test_a_wait_ends_at_its_own_time_or_the_signals() -> None:
    began = time.monotonic()
    assert not LossSignal(math.inf).wait(0.05)
    assert not LossSignal(began + DEADLINE).wait(0.05)
    assert not LossSignal(began + DEADLINE).wait(-1)
    assert LossSignal(time.monotonic() + 0.05).wait()
    assert LossSignal(time.monotonic() + 0.05).wait(DEADLINE)
    assert 0.2 <= time.monotonic() - began < DEADLINE


def test_a_wait_ends_when_the_signal_is_set() -> None:
    signal = LossSignal(time.monotonic() + 100)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(signal.wait)
        signal.set()
        assert waiting.result(DEADLINE)


def test_what_is_postponed_in_time_goes_on_and_what_is_lost_stays_lost() -> None:
    signal = LossSignal(time.monotonic() + 0.05)
    assert signal.postpone(time.monotonic() + 0.2)
    assert not signal.wait(0.1)
    assert signal.wait()
    assert not signal.postpone(math.inf)
    signal.until = math.inf
    assert signal.is_set()
    assert signal.wait(0)


# -- turns -----------------------------------------------------------------------------------------


def _wait_for_line(turns: Turns, length: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while len(turns._lines["k"]) < length:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_turns_come_in_the_order_in_which_they_were_asked_for() -> None:
    turns, order = Turns(), []
    assert turns.take("k", 0)
    assert turns.take("other", 0)

    def wait(number: int) -> None:
        assert turns.take("k", DEADLINE)
        order.append(number)
        turns.give("k")

    with ThreadPoolExecutor(5) as pool:
        waiting = []
        for number in range(5):
            waiting.append(pool.submit(wait, number))
            _wait_for_line(turns, number + 2)
        turns.give("k")
        for future in waiting:
            future.result(DEADLINE)
    assert order == list(range(5))


def test_who_gives_up_waiting_is_passed_over() -> None:
    turns = Turns()
    assert turns.take("k", 0)
    assert not turns.take("k", 0.01)
    assert not turns.take("k", -1)
    turns.give("k")
    assert turns.take("k", 0)
    turns.give("k")
    assert turns._lines == {}  # as many as there are keys in use


@pytest.mark.parametrize("came", [False, True])
def test_who_is_interrupted_while_waiting_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, came: bool
) -> None:
    turns = Turns()
    assert turns.take("k", 0)

    def interrupt(*_: object) -> bool:
        if came:
            turns.give("k")  # the turn came in the same moment
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Event, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            turns.take("k", DEADLINE)
    if not came:
        turns.give("k")
    assert turns.take("k", 0)


# -- one process -----------------------------------------------------------------------------------


def test_the_locks_of_a_process_last_as_long_as_it_does() -> None:
    handle = ProcessLocker().acquire("k", AT_ONCE)
    assert handle.fence == 1
    assert handle.held_until == math.inf


_FORKED = """
import os, threading
from datetime import timedelta
from queue_lib import ProcessLocker

locker = ProcessLocker()
handle = locker.acquire("k", timedelta(0))
turns = locker._turns
with turns._lock, locker._releasing:  # as another thread may hold them
    child = os.fork()
if child == 0:
    assert not handle.is_held() and handle.lost.is_set() and handle.held_until < 0
    handle.release()
    with locker.acquire("k", timedelta(0)) as own:
        assert own.is_held()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert handle.is_held()
"""


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_locks_of_its_own() -> None:
    subprocess.run(
        [sys.executable, "-c", _FORKED], cwd=Path(__file__).parents[2], check=True, timeout=30
    )
