"""Handlers that a test can watch and hold, stores that keep a diary, and patience with a limit."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from queue_lib import Delivery, Message, QueueClosedError, Store
from queue_lib.engine.subscription import StoreSubscription
from queue_lib.locks import DistributedLocker
from queue_lib.registry import open_database_store
from queue_lib.testing.faults import StoreWrapper, operations

__all__ = [
    "DEADLINE",
    "FAST",
    "GROUP",
    "LOCK_TTL",
    "MINUTE",
    "TOPIC",
    "Backend",
    "Diary",
    "Entry",
    "Gate",
    "Inbox",
    "await_closer",
    "eventually",
    "in_thread",
    "messages",
    "run_child",
    "start_child",
]

DEADLINE = 20.0
"""Seconds after which a test gives up waiting; never reached when all is well."""

FAST: dict[str, Any] = {"poll_interval": 0.02, "backoff_base": 0.001, "backoff_max": 0.01}
"""Options for tests in which neither polls nor backoffs matter."""

MINUTE: dict[str, Any] = {**FAST, "poll_interval": 60}
"""Options for tests that would fail if anything waited for a poll."""

LOCK_TTL = 1.0
"""Seconds for which a lock outlives the process that held it."""

TOPIC, GROUP = "orders", "billing"


@dataclass(frozen=True)
class Backend:
    """Where the queues of one test keep their messages, and what can be done there."""

    name: str
    capabilities: frozenset[str]
    """``shared``: other processes reach it at `url`; ``transactional``: so do SQL connections."""
    url: str = ""
    locks: str = ""
    """Where processes that share it keep their locks, if it needs any."""
    latency: float = 0.0
    """Seconds that an operation takes, where that is long enough to matter."""
    memory: Store | None = None
    locker: DistributedLocker | None = None

    def open(self) -> Store:
        """Open another handle on the same data."""
        if self.memory is not None:
            return _Borrowed(self.memory)
        return open_database_store(sa.make_url(self.url), locker=self.locker)

    @property
    def lease(self) -> float:
        """Seconds of a lease that is soon over, and yet is renewed in time."""
        return 0.4 + 5 * self.latency

    @property
    def hold_up(self) -> float:
        """Seconds for which a process that was killed may keep the others waiting."""
        return LOCK_TTL if self.locks else 0.0


class _Borrowed(StoreWrapper):
    """A handle on a store that outlives it."""

    _closed = False

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "close":
            self._closed = True
            return None
        if self._closed:
            raise QueueClosedError("the store is closed")
        return super().call(method, *args, **kwargs)


def eventually(check: Callable[[], object]) -> None:
    """Wait until `check` holds: for state that nobody signals."""
    end = time.monotonic() + DEADLINE
    while True:
        looked = time.monotonic()
        if check():
            return
        now = time.monotonic()
        assert now < end, f"did not come true within {DEADLINE} s"
        time.sleep(max(0.005, now - looked))  # looking must not slow down what it waits for


def messages(count: int, topic: str = TOPIC, *, start: int = 0, **fields: Any) -> list[Message]:
    """Make messages with the ids orders-0, orders-1 …, and the numbers as payloads."""
    return [
        Message(topic, str(number).encode(), id=f"{topic}-{number}", **fields)
        for number in range(start, start + count)
    ]


class Inbox:
    """A handler that keeps what it gets, then does what the test wants."""

    def __init__(self, then: Callable[[Delivery], object] | None = None) -> None:
        self.deliveries: list[Delivery] = []  # guarded by _changed
        self.times: list[float] = []  # monotonic, of each; guarded by _changed
        self._then = then
        self._changed = threading.Condition()

    def __call__(self, delivery: Delivery) -> object:
        with self._changed:
            self.deliveries.append(delivery)
            self.times.append(time.monotonic())
            self._changed.notify_all()
        return None if self._then is None else self._then(delivery)

    def wait(self, count: int = 1) -> list[Delivery]:
        """Wait for that many deliveries; return them, and the later ones that are here by now."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.deliveries) >= count, DEADLINE)
            assert came, f"only {len(self.deliveries)} of {count} deliveries came"
            return list(self.deliveries)

    @property
    def ids(self) -> list[str]:
        """The message ids, in order of arrival."""
        with self._changed:
            return [delivery.id for delivery in self.deliveries]

    @property
    def attempts(self) -> list[int]:
        """The attempts, in order of arrival."""
        with self._changed:
            return [delivery.attempt for delivery in self.deliveries]


class Gate(Inbox):
    """A handler that holds each delivery until the test lets it pass.

    As a context manager it is open from the end on, so that no handler outlives a failed test.
    """

    def __init__(self, then: Callable[[Delivery], object] | None = None) -> None:
        super().__init__(then)
        self.running = 0  # guarded by _changed
        self.peak = 0  # guarded by _changed
        self._passes = threading.Semaphore(0)
        self._is_open = threading.Event()

    def __call__(self, delivery: Delivery) -> object:
        with self._changed:
            self.running += 1
            self.peak = max(self.peak, self.running)
            self.deliveries.append(delivery)
            self.times.append(time.monotonic())
            self._changed.notify_all()
        try:
            assert self._is_open.is_set() or self._passes.acquire(timeout=2 * DEADLINE)
            return None if self._then is None else self._then(delivery)
        finally:
            with self._changed:
                self.running -= 1
                self._changed.notify_all()

    def let_pass(self, count: int = 1) -> None:
        """Let that many of those that are held pass, or of those to come."""
        self._passes.release(count)

    def open(self) -> None:
        """Let everybody pass from now on."""
        self._is_open.set()
        self._passes.release(1000)

    def wait_left(self) -> None:
        """Wait until no handler is inside."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.running == 0, DEADLINE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()


@dataclass(frozen=True)
class Entry:
    """A call of a store."""

    args: tuple[Any, ...]
    answer: Any
    """What it returned, or the exception that it raised."""
    began: float
    ended: float


class Diary(StoreWrapper):
    """A store that keeps a diary of its calls; a joint one is entered as both of its halves."""

    def __init__(self, store: Store) -> None:
        self._changed = threading.Condition()
        self._entries: list[tuple[str, Entry]] = []  # guarded by _changed
        super().__init__(store)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        began = time.monotonic()
        answer: Any = None
        try:
            answer = super().call(method, *args, **kwargs)
        except BaseException as error:
            answer = error
            raise
        else:
            return answer
        finally:
            ended = time.monotonic()
            with self._changed:
                self._entries += [
                    (each.method, Entry(each.args, each.answer, began, ended))
                    for each in operations(method, args, answer)
                ]
                self._changed.notify_all()

    def of(self, method: str) -> list[Entry]:
        """Return the calls of a method that have ended, in the order in which they did."""
        with self._changed:
            return [entry for name, entry in self._entries if name == method]

    def wait(self, method: str, count: int = 1) -> list[Entry]:
        """Wait until that many calls of a method have ended."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: sum(name == method for name, _ in self._entries) >= count, DEADLINE
            ), f"{method} was not called {count} times"
        return self.of(method)


@contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[threading.Thread]:
    """Do something in a thread of its own; at the end of the block it must come to its end."""
    thread = threading.Thread(target=work, name="test-thread")
    thread.start()
    yield thread
    thread.join(DEADLINE)
    assert not thread.is_alive(), "it did not return"


def await_closer(subscription: StoreSubscription) -> None:
    """Wait until somebody who closes the subscription waits for its handlers."""
    eventually(lambda: subscription._ledger._waiters)


def start_child(script: str, backend: Backend, *arguments: str) -> subprocess.Popen[str]:
    """Start a function of `child.py` in a process of its own, with pipes to all three streams."""
    root = Path(__file__).parents[2]
    place = [backend.url, backend.locks, str(backend.latency)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.engine.child", script, *place, *arguments],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_child(script: str, backend: Backend, *arguments: str) -> tuple[int, str, str, float]:
    """Run a function of `child.py` to its end; return its exit code, output, errors and seconds."""
    began = time.monotonic()
    with start_child(script, backend, *arguments) as child:
        try:
            output, errors = child.communicate(timeout=2 * DEADLINE)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
    return child.returncode, output, errors, time.monotonic() - began
