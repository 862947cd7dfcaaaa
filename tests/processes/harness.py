"""Children of a test: started, listened to with a deadline, killed at a point, always reaped."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import sqlalchemy as sa

from queue_lib import Queue
from tests.processes.checker import check
from tests.processes.log import Log
from tests.processes.worker import DEAD_TOPIC, GROUPS, TOPIC, Member, Record, Settings

__all__ = [
    "DEADLINE",
    "Child",
    "Start",
    "assert_sound",
    "await_drained",
    "drain",
    "member",
    "register",
    "runs",
]

DEADLINE = 30.0
"""Seconds that a test waits for one step of a child; never reached when all is well."""

_ROOT = Path(__file__).parents[2]
_DEAD, _OVER = (4, 6), (5,)  # of the states in `queue_lib.stores.schema`


class Child:
    """A `worker` in a process of its own."""

    def __init__(self, settings: Settings, log: Log, errors: Path) -> None:
        self._log = log
        self._said: list[str] = []
        with errors.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.processes.worker", json.dumps(asdict(settings))],
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
            )
        self.pid = self._process.pid

    def tell(self, *commands: str) -> None:
        """Send commands."""
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{command}\n" for command in commands).encode())
        self._process.stdin.flush()

    def publish(self, batches: Iterable[Sequence[Record]]) -> None:
        """Have it publish; does not wait until it has."""
        self.tell(f"publish {json.dumps(list(batches))}")

    def hear(self, expected: str) -> None:
        """Wait until the child has said this; what else it says is kept for later.

        Raises:
            AssertionError: it did not, or has ended.
        """
        assert self.has_said(expected, DEADLINE), f"{self.pid} said {self._said}, not {expected!r}"

    def has_said(self, expected: str, seconds: float) -> bool:
        """Wait that long at most for the child to say this; say whether it did."""
        assert self._process.stdout is not None
        end = time.monotonic() + seconds
        while expected not in self._said:
            left = max(end - time.monotonic(), 0)
            if not select.select([self._process.stdout], [], [], left)[0]:
                return False
            # The child writes each line at once, and none is longer than a pipe takes at once.
            said = os.read(self._process.stdout.fileno(), 4096).decode()
            assert said, f"{self.pid} ended; it should have said {expected!r}, not {self._said}"
            self._said += said.splitlines()
        self._said.remove(expected)
        return True

    def start(self) -> None:
        """Wait until it is ready, and have it consume."""
        self.hear("ready")
        self.tell("subscribe")
        self.hear("subscribed")

    def kill(self) -> None:
        """End it in the middle of whatever it does."""
        self._process.kill()
        self._process.wait(DEADLINE)
        self._log.write("killed", victim=self.pid)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED)  # until it has stopped

    def end(self) -> int:
        """Wait until it has ended by itself; return its exit code."""
        return self._process.wait(DEADLINE)

    def reap(self) -> None:
        """Leave nothing of it, whatever state it is in."""
        self._process.kill()
        self._process.communicate()


Start = Callable[[Settings], Child]


@contextmanager
def member(settings: Settings, log: Log) -> Iterator[Member]:
    """Be a member in this process; one that loses no lease, however busy the machine is."""
    member = Member(replace(settings, lease=60), log)
    try:
        yield member
    finally:
        member.close(5)


def register(settings: Settings, log: Log) -> None:
    """Register the groups, as consumers do that have gone again."""
    with member(settings, log) as visitor:
        visitor.subscribe()


def drain(member: Member) -> int:
    """Consume until nothing is left to do; return how many messages are dead."""
    member.subscribe()
    return await_drained(member.queue)


def await_drained(
    queue: Queue, groups: Sequence[str] = GROUPS[:1], seconds: float = DEADLINE
) -> int:
    """Wait until nothing of any group is pending or leased; return how many are dead."""
    end = time.monotonic() + seconds
    while True:
        stats = [queue.stats(TOPIC, group) for group in groups]
        if not any(of_group.pending or of_group.leased for of_group in stats):
            return sum(of_group.dead for of_group in stats)
        assert time.monotonic() < end, f"not drained within {seconds} s: {stats}"
        time.sleep(0.02)


def runs(log: Log, pid: int | None = None) -> list[tuple[str, int]]:
    """Return what was handled, in order: message id and attempt; by one process or by all."""
    return [(run["id"], run["attempt"]) for run in log.read("start") if pid in (None, run["pid"])]


def assert_sound(settings: Settings, log: Log) -> None:
    """Judge everything that happened, once all members have ended."""
    _settle_accounts(settings.url, log)
    violations = [
        str(violation)
        for group in settings.groups
        for violation in check(
            log.read(),
            group=group,
            max_attempts=settings.max_attempts,
            max_in_flight=settings.max_in_flight,
        )
    ]
    assert not violations, "\n" + "\n".join(violations)


def _settle_accounts(url: str, log: Log) -> None:
    """Write down what is left in the database: deliveries that are not over, and copies."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        rows = connection.execute(
            sa.text(
                "SELECT m.id, g.name, d.state FROM queue_deliveries d "
                "JOIN queue_groups g ON g.id = d.group_id JOIN queue_messages m ON m.seq = d.seq"
            )
        ).all()
        texts = connection.execute(
            sa.text(
                "SELECT m.headers FROM queue_messages m "
                "JOIN queue_topics t ON t.id = m.topic_id WHERE t.name = :topic"
            ),
            {"topic": DEAD_TOPIC},
        ).scalars()
        copies = [json.loads(text) for text in texts]
    engine.dispose()
    for id_, group, state in rows:
        if state not in _OVER:
            log.write("left", id=id_, group=group, state="dead" if state in _DEAD else "alive")
    for headers in copies:
        log.write(
            "copy",
            group=headers["x-queue-dlq-group"],
            delivery=headers["x-queue-dlq-delivery-id"],
            attempts=int(headers["x-queue-dlq-attempts"]),
            error=headers["x-queue-dlq-error"],
        )
