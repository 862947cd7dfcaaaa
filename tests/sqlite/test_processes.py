"""Several processes on one file, one of which is killed at its point."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from queue_lib.message import Message
from queue_lib.options import StartFrom
from queue_lib.stores.base import Claimed, Stats
from queue_lib.stores.sql.open import open_sql_store
from queue_lib.stores.sql.store import SqlStore
from tests.sqlite.child import request
from tests.sqlite.support import DEADLINE, Queue, until
from tests.sqlite.test_wake import listening

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]


class Child:
    """Another process, on speaking terms."""

    def __init__(self, role: str, url: sa.URL) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.sqlite.child", role, str(url)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hears(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=DEADLINE)


@pytest.fixture
def child(url: sa.URL) -> Iterator[Callable[[str], Child]]:
    children: list[Child] = []

    def start(role: str) -> Child:
        children.append(Child(role, url))
        return children[-1]

    yield start
    for one in children:
        one.kill()


@pytest.fixture
def store(url: sa.URL) -> Iterator[SqlStore]:
    store = open_sql_store(url)
    store.ensure_group("orders", "billing", StartFrom.LATEST)
    yield store
    store.close()


def publish(store: SqlStore, count: int) -> list[str]:
    names = [f"m{number}" for number in range(count)]
    now = datetime.now(UTC)
    store.append([Message("orders", id=name, published_at=now) for name in names])
    return names


def test_what_a_killed_process_had_claimed_is_claimed_again(
    store: SqlStore, child: Callable[[str], Child]
):
    names = publish(store, 9)
    other = child("claim")
    taken = other.hears().split()
    assert taken == names[:5]
    rest = store.claim(request(9, seconds=60))
    assert [claim.message.id for claim in rest] == names[5:]
    other.kill()
    again: list[Claimed] = []

    def all_are_back() -> bool:
        again.extend(store.claim(request(9, seconds=60)))
        return len(again) == 5

    until(all_are_back)
    assert sorted(claim.message.id for claim in again) == taken
    assert {claim.attempt for claim in again} == {2}
    assert len(store.ack([*rest, *again])) == 9


def test_what_a_killed_process_had_not_committed_is_gone_and_its_lock_too(
    queue: Queue, child: Callable[[str], Child]
):
    other = child("begin")
    assert other.hears() == "begun"
    other.kill()
    queue.register("audit")
    assert queue.rows("select name from {q}topics") == [("orders",)]
    assert queue.rows("pragma integrity_check") == [("ok",)]


def test_processes_share_a_group_without_overlap(store: SqlStore, child: Callable[[str], Child]):
    names = publish(store, 300)
    others = [child("consume"), child("consume")]
    for other in others:
        assert other.hears() == "ready"
    for other in others:
        other.go()
    mine = []
    while claims := store.claim(request(7, seconds=60)):
        assert len(store.ack(claims)) == len(claims)
        mine += [claim.message.id for claim in claims]
    theirs = [other.process.communicate(timeout=DEADLINE)[0].split() for other in others]
    assert sorted(mine + theirs[0] + theirs[1]) == sorted(names)
    assert store.stats("orders", "billing") == Stats()


def test_a_publish_of_another_process_wakes(queue: Queue, child: Callable[[str], Child]):
    other = child("publish")
    assert other.hears() == "ready"
    with listening(queue.database) as wakes:
        other.go()
        assert wakes.acquire(timeout=DEADLINE)
    until(lambda: queue.rows("select count(*) from {q}deliveries") == [(1,)])
