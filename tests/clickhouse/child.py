"""A process that works on a store by the word of its test, and stops dead where it is told to.

Runs as a program: ``child.py URL LOCKS TTL``. Reads one JSON command a line, answers with one.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from queue_lib.lockers.sql import SQLLocker
from queue_lib.message import Message
from queue_lib.stores.base import Claimed, ClaimRequest
from queue_lib.stores.clickhouse.database import Database
from queue_lib.stores.clickhouse.open import open_clickhouse_store
from queue_lib.stores.clickhouse.store import ClickHouseStore

TOPIC, GROUP = "orders", "billing"


class Child:
    """The process, as its test sees it."""

    def __init__(self, url: str, locks: Path, ttl: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.clickhouse.child", url, str(locks), str(ttl)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.hear() == "ready"

    def tell(self, *command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        """Wait for its next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the child ended"
        return json.loads(line)

    def hear_answer(self) -> Any:
        """Wait for the answer to a command, past whatever it says on the way."""
        while True:
            said = self.hear()
            if isinstance(said, dict):
                return said["answer"]

    def ask(self, *command: Any) -> Any:
        self.tell(*command)
        return self.hear_answer()

    def wait_stopped(self, point: str) -> None:
        """Wait until it has stopped there."""
        assert self.hear() == f"at {point}"
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def stop_at(points: list[str]) -> None:
    """Stop at each of the points, one after the other: ``before insert live``, say."""

    def here(point: str) -> None:
        if points and points[0] == point:
            points.pop(0)
            print(json.dumps(f"at {point}"), flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)

    def wrap(name: str, table_of: Callable[[str], str]) -> None:
        original = getattr(Database, name)

        def wrapper(self: Database, statement: str, *rest: Any) -> Any:
            what = f"{name} {table_of(statement)}"
            here(f"before {what}")
            result = original(self, statement, *rest)
            here(f"after {what}")
            return result

        setattr(Database, name, wrapper)

    wrap("insert", lambda table: table.rpartition("_")[2])
    wrap("command", lambda statement: statement.split("(")[0].rpartition("_")[2].strip())


def claim(store: ClickHouseStore, limit: int = 100, lease: float = 30) -> list[Claimed]:
    request = ClaimRequest(TOPIC, GROUP, "test", limit, timedelta(seconds=lease))
    return store.claim(request)


def message(id_: str, key: str = "", priority: int = 0, due_in: float = 0) -> Message:
    now = datetime.now(UTC)
    due = now + timedelta(seconds=due_in) if due_in else None
    return Message(TOPIC, b"x", key, id_, deliver_at=due, published_at=now, priority=priority)


class _Tell(logging.Handler):
    """Says aloud that the store was refused and comes in again."""

    def emit(self, record: logging.LogRecord) -> None:
        print(json.dumps("refused"), flush=True)


def main(url: str, locks: str, ttl: str) -> None:
    points: list[str] = []
    stop_at(points)
    log = logging.getLogger("queue_lib.clickhouse")
    log.setLevel(logging.DEBUG)
    log.addHandler(_Tell())
    store = open_clickhouse_store(sa.make_url(url), SQLLocker(f"sqlite:///{locks}", ttl=float(ttl)))
    held: list[Claimed] = []
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        answer: Any = None
        if command == "stop":
            points[:] = arguments
        elif command == "publish":
            store.append([message(*given) for given in arguments])
        elif command == "claim":
            held = claim(store, *arguments)
            answer = [found.message.id for found in held]
        elif command == "ack":
            acked = set(store.ack(held))
            answer = [found.message.id for found in held if found.delivery_id in acked]
        elif command == "retry":
            (backoff,) = arguments
            answer = [store.retry(found, timedelta(seconds=backoff), "why") for found in held]
        print(json.dumps({"answer": answer}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
