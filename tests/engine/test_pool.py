"""The handler pool alone, with many threads: no item is lost, no wake-up is slept through."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pytest

from queue_lib import Claimed, Message
from queue_lib.engine.pool import HandlerPool
from queue_lib.engine.run import Run
from queue_lib.testing.conformance.case import together
from tests.engine.harness import DEADLINE

pytestmark = pytest.mark.usefixtures("eager_switches")


LONG, BRIEF = 1.0, 0.0
"""What an item may say that it took, in seconds."""


def telling(ran: threading.Semaphore) -> Callable[[Run], float]:
    def execute(_: Run) -> float:
        ran.release()
        return LONG

    return execute


def run(number: int = 0) -> Run:
    return Run(Claimed(f"d{number}", f"token{number}", "g", 1, Message("t")), time.monotonic())


@pytest.mark.parametrize("took", [LONG, BRIEF], ids=["long", "brief"])
def test_the_pool_runs_every_item_whoever_submits_and_however_threads_meet(took: float) -> None:
    rounds, submitters = 1500, 4
    done: Counter[int] = Counter()
    all_done = threading.Semaphore(0)

    def execute(item: Run) -> float:
        done[threading.get_ident()] += 1
        all_done.release()
        return took

    pool = HandlerPool("queue-pool", 4, execute)

    def submit(_: int) -> None:
        for number in range(rounds):
            # Small and larger batches, each waited for: threads go to sleep and are woken all the
            # time, which is when a wake-up could be lost.
            count = 1 + number % 3
            pool.submit([run() for _ in range(count)])
            for _ in range(count):
                assert all_done.acquire(timeout=DEADLINE), "a wake-up was lost"

    together(submitters, submit)
    pool.stop()
    assert pool.join(DEADLINE)
    assert sum(done.values()) == submitters * sum(1 + n % 3 for n in range(rounds))
    assert len(done) <= 4


def test_long_items_fan_out_over_all_threads_from_one_submit() -> None:
    meeting = threading.Barrier(8)
    met = threading.Semaphore(0)

    def execute(_: Run) -> float:
        meeting.wait(DEADLINE)  # broken unless all eight are inside at once
        met.release()
        return LONG

    pool = HandlerPool("queue-pool", 8, execute)
    for _ in range(20):
        pool.submit([run() for _ in range(8)])
        for _ in range(8):
            assert met.acquire(timeout=DEADLINE)
    pool.stop()
    assert pool.join(DEADLINE)


def test_brief_items_are_left_to_one_thread_until_one_of_them_takes_long() -> None:
    threads: list[int] = []
    meeting, ran = threading.Barrier(2), threading.Semaphore(0)
    meets = False

    def execute(_: Run) -> float:
        threads.append(threading.get_ident())
        if meets:
            meeting.wait(DEADLINE)
        ran.release()
        return BRIEF

    pool = HandlerPool("queue-pool", 4, execute)
    for count in (1, 20, 20):
        pool.submit([run() for _ in range(count)])
        for _ in range(count):
            assert ran.acquire(timeout=DEADLINE)
    assert len(set(threads)) == 1
    meets = True
    pool.submit([run(), run()])
    while len(threads) < 42:  # the first of them waits for the second, which nobody looks for
        time.sleep(0.001)
    pool.spread()
    for _ in range(2):
        assert ran.acquire(timeout=DEADLINE)
    pool.stop()
    assert pool.join(DEADLINE)
    assert len(set(threads)) == 2


class _Bed(deque[Any]):
    """Where threads go to sleep; the test acts just before or just after one lay down."""

    def __init__(self, before: Callable[[], object], after: Callable[[], object]) -> None:
        super().__init__()
        self._before, self._after = before, after

    def append(self, baton: Any) -> None:
        self._before()
        super().append(baton)
        self._after()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_work_that_comes_while_a_thread_falls_asleep_is_done(moment: str) -> None:
    late = 3
    ran = threading.Semaphore(0)
    pool = HandlerPool("queue-pool", 1, telling(ran))

    def submit() -> None:
        nonlocal late
        if late:
            late -= 1
            pool.submit([run()])

    pool._idle = _Bed(*((submit, int) if moment == "before" else (int, submit)))
    pool.submit([run()])
    for _ in range(4):
        assert ran.acquire(timeout=DEADLINE), "a wake-up was lost"
    pool._idle = deque(pool._idle)
    for _ in range(3):  # nor did a wake-up stay behind for the wrong sleep
        pool.submit([run()])
        assert ran.acquire(timeout=DEADLINE)
    pool.stop()
    assert pool.join(DEADLINE)


def test_a_stop_reaches_threads_that_are_just_falling_asleep() -> None:
    for _ in range(300):
        pool = HandlerPool("queue-pool", 3, lambda _: LONG)
        pool.submit([run() for _ in range(3)])
        pool.stop()
        assert pool.join(DEADLINE), "a thread slept through the stop"


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_a_thread_outlives_whatever_execute_raises(error: type[BaseException]) -> None:
    threads: list[int] = []
    ran = threading.Semaphore(0)

    def execute(_: Run) -> float:
        threads.append(threading.get_ident())
        ran.release()
        raise error

    pool = HandlerPool("queue-pool", 1, execute)
    for _ in range(3):
        pool.submit([run()])
        assert ran.acquire(timeout=DEADLINE)
    pool.stop()
    assert pool.join(DEADLINE)
    assert len(set(threads)) == 1


def test_the_pool_makes_do_with_the_threads_that_the_system_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = threading.Semaphore(0)
    pool = HandlerPool("queue-pool", 4, telling(ran))
    start = threading.Thread.start

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError):  # none at all: the pump's supervisor reports it
        pool.submit([run(), run()])
    monkeypatch.setattr(threading.Thread, "start", start)
    pool.submit([])  # … and tries again
    assert ran.acquire(timeout=DEADLINE)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    pool.submit([run() for _ in range(10)])  # one thread: it does all the work
    for _ in range(11):
        assert ran.acquire(timeout=DEADLINE)
    pool.stop()
    assert pool.join(DEADLINE)
