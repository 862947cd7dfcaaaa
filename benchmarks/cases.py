"""What is measured. Each case alternates store and floor, so that both see the same weather."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from benchmarks.floor import Floor, notify_and_claim
from queue_lib import EngineConfig, Message, StartFrom, new_store_queue
from queue_lib.migrate import upgrade
from queue_lib.stores.base import ClaimRequest
from queue_lib.stores.sql.dialect import AppendRow, Held
from queue_lib.stores.sql.open import open_sql_store
from queue_lib.stores.sql.store import SqlStore
from queue_lib.testing.statements import RecordingDatabase

LEASE = timedelta(seconds=600)
LEASE_US = 600_000_000
TOPIC = "bench"


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    rounds: int = 5
    publishes: int = 300
    batches: int = 10
    drain: int = 10_000
    claims: int = 40
    latencies: int = 200
    backlogs: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    scheduled: int = 500_000


SMOKE = Size(2, 10, 2, 200, 4, 5, (200, 400), 300)


@dataclass
class Figure:
    """One measured line."""

    name: str
    unit: str
    store: float
    floor: float | None = None
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Store against floor: 1 is as fast as the driver alone, whatever the unit."""
        if not self.floor:
            return None
        return self.floor / self.store if self.unit in ("ms", "us") else self.store / self.floor


class Bench:
    """The cases on one database; `fresh()` gives an empty migrated one."""

    def __init__(self, fresh: Callable[[], sa.URL], size: Size) -> None:
        self._fresh = fresh
        self._size = size

    # -- publish -------------------------------------------------------------------------------

    def publish(self, batch: int, groups: int, payload_bytes: int) -> Figure:
        """Messages a second, `batch` in a call."""
        payload = b"x" * payload_bytes
        calls = self._size.publishes if batch == 1 else self._size.batches
        url = self._fresh()
        store, floor = open_sql_store(url), Floor(url)
        queue = new_store_queue(store, EngineConfig(janitor_interval="1h"))
        for number in range(groups):
            store.ensure_group(TOPIC, f"g{number}", StartFrom.LATEST)

        def through_store() -> None:
            for _ in range(calls):
                queue.publish(*[Message(TOPIC, payload) for _ in range(batch)])

        def through_floor() -> None:
            for _ in range(calls):
                rows = [_row(payload) for _ in range(batch)]
                floor.run_durably(floor.statements.append, rows, None)

        figure = self._rates(
            f"publish {batch}, {groups} group{'s'[: groups > 1]}, {payload_bytes} B",
            calls * batch, through_store, through_floor,
        )  # fmt: skip
        queue.close()
        floor.close()
        return figure

    # -- consume -------------------------------------------------------------------------------

    def claim_and_ack(self, batch: int = 32) -> Figure:
        """Messages a second through claim and acknowledgement, without the engine."""
        url = self._fresh()
        store, floor = open_sql_store(url), Floor(url)
        loops = self._size.claims
        self._fill(store, 2 * self._size.rounds * loops * batch)
        group_id = _group_id(floor)
        request = ClaimRequest(TOPIC, "g0", "bench", batch, LEASE)

        def through_store() -> None:
            for _ in range(loops):
                claims = store.claim(request)
                assert len(store.ack(claims)) == batch

        def through_floor() -> None:
            for _ in range(loops):
                assert _floor_claim_and_ack(floor, group_id, batch) == batch

        figure = self._rates(f"claim + ack of {batch}", loops * batch, through_store, through_floor)
        store.close()
        floor.close()
        return figure

    def drain(self, concurrency: int, keys: int = 0) -> Figure:
        """Messages a second, end to end, with a handler that does nothing."""
        url = self._fresh()
        store, floor = open_sql_store(url), Floor(url)
        queue = new_store_queue(store, EngineConfig(janitor_interval="1h"))
        count = self._size.drain
        store.ensure_group(TOPIC, "g0", StartFrom.LATEST)
        group_id = _group_id(floor)
        recording = _recorded(store)
        sent = 0

        def through_store() -> float:
            nonlocal sent
            self._fill(store, count, keys=keys)
            recording.statements.clear()
            handled, done = itertools.count(1), threading.Event()

            def handle(_delivery: object) -> None:
                if next(handled) == count:
                    done.set()

            started = time.perf_counter()
            subscription = queue.subscribe(
                TOPIC, "g0", handle, concurrency=concurrency, batch_size=concurrency
            )
            assert done.wait(300)
            subscription.close()
            took = time.perf_counter() - started
            sent += len(recording.statements)
            return took

        def through_floor() -> float:
            self._fill(store, count, keys=keys)
            started = time.perf_counter()
            done: list[Held] = []
            while True:
                rows, *_ = floor.run(
                    floor.statements.claim, group_id, done, concurrency, LEASE_US, 0, None
                )
                if not rows:
                    return time.perf_counter() - started
                done = [Held(row.seq, row.token, row.key) for row in rows]

        ours, theirs = [], []
        for _ in range(max(self._size.rounds // 2, 1)):
            ours.append(count / through_store())
            theirs.append(count / through_floor())
        name = f"drain, concurrency {concurrency}" + (f", {keys:,} keys" if keys else "")
        figure = Figure(name, "/s", statistics.median(ours), statistics.median(theirs))
        figure.more["statements_per_message"] = round(sent / (len(ours) * count), 4)
        queue.close()
        floor.close()
        return figure

    def latency(self, *, other_process: bool) -> Figure:
        """Milliseconds from `publish` to the handler, idle subscriber, a poll of a minute."""
        url = self._fresh()
        store = open_sql_store(url)
        queue = new_store_queue(store, EngineConfig(janitor_interval="1h"))
        arrived = threading.Event()
        took: list[float] = []

        def handle(delivery: Any) -> None:
            took.append((time.time() - float(delivery.payload)) * 1000)
            arrived.set()

        queue.subscribe(TOPIC, "g0", handle, poll_interval=60)
        child: subprocess.Popen[str] | None = None
        if other_process:
            child = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.publisher", _text(url)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                cwd=Path(__file__).parents[1],
            )  # fmt: skip
        for _ in range(self._size.latencies):
            arrived.clear()
            if child is None:
                queue.publish(Message(TOPIC, str(time.time()).encode()))
            else:
                assert child.stdin is not None
                child.stdin.write("publish\n")
                child.stdin.flush()
            assert arrived.wait(30)
            time.sleep(0.02)  # let everybody fall idle: that is what is measured
        if child is not None:
            child.communicate()
        queue.close()
        took.sort()
        where = "another process" if other_process else "the same process"
        floor = None
        if other_process and url.get_backend_name() == "postgresql":
            floor = notify_and_claim(Floor(url), Floor(url), TOPIC, self._size.latencies)
        return Figure(
            f"latency from {where}, p50", "ms", statistics.median(took), floor,
            more={"p99": round(took[int(len(took) * 0.99)], 2)},
        )  # fmt: skip

    # -- size of the backlog -------------------------------------------------------------------

    def claim_at_backlog(self, shape: str) -> list[Figure]:
        """Milliseconds of a claim of 32, at growing backlogs of one shape."""
        url = self._fresh()
        store, floor = open_sql_store(url), Floor(url)
        store.ensure_group(TOPIC, "g0", StartFrom.LATEST)
        request = ClaimRequest(TOPIC, "g0", "bench", 32, LEASE)
        keys = {"no key": 0, "1,000 keys": 1000, "one key, head held": 1, "scheduled": 0}[shape]
        figures: list[Figure] = []
        size = 0
        if shape == "scheduled":
            self._fill(store, self._size.scheduled, due=datetime.now(UTC) + timedelta(days=6))
        for backlog in self._size.backlogs:
            self._fill(store, backlog - size, keys=keys)
            size = backlog
            if shape == "one key, head held" and not figures:
                assert len(store.claim(request)) == 1
            took = []
            for _ in range(self._size.claims):
                started = time.perf_counter()
                claims = store.claim(request)
                took.append((time.perf_counter() - started) * 1000)
                store.release(claims)
            figures.append(Figure(
                f"claim of 32 at {backlog:,} ({shape})", "ms", statistics.median(took),
            ))  # fmt: skip
        for figure in figures:
            figure.more["against_smallest"] = round(figure.store / figures[0].store, 2)
        store.close()
        floor.close()
        return figures

    def bytes_per_message(self, count: int = 10_000, payload_bytes: int = 100) -> Figure:
        """Bytes on disk for a pending message of one group, beyond its payload."""
        url = self._fresh()
        store, floor = open_sql_store(url), Floor(url)
        store.ensure_group(TOPIC, "g0", StartFrom.LATEST)
        before = _bytes(floor, url)
        self._fill(store, min(count, self._size.drain), payload=b"x" * payload_bytes)
        grown = (_bytes(floor, url) - before) / min(count, self._size.drain)
        store.close()
        floor.close()
        return Figure(f"bytes beside a payload of {payload_bytes}", "B", grown - payload_bytes)

    def idle(self) -> Figure:
        """Statements for each poll that finds nothing."""
        url = self._fresh()
        store = open_sql_store(url)
        store.ensure_group(TOPIC, "g0", StartFrom.LATEST)
        request = ClaimRequest(TOPIC, "g0", "bench", 32, LEASE)
        store.claim(request)
        recording = _recorded(store)
        for _ in range(10):
            store.claim(request)
        store.close()
        return Figure("statements an empty poll", "", len(recording.statements) / 10)

    # -- inside --------------------------------------------------------------------------------

    def _rates(
        self, name: str, count: int, ours: Callable[[], None], theirs: Callable[[], None]
    ) -> Figure:
        rates: dict[str, list[float]] = {"store": [], "floor": []}
        for _ in range(self._size.rounds):
            for which, work in (("store", ours), ("floor", theirs)):
                started = time.perf_counter()
                work()
                rates[which].append(count / (time.perf_counter() - started))
        return Figure(
            name, "/s", statistics.median(rates["store"]), statistics.median(rates["floor"])
        )

    def _fill(
        self,
        store: SqlStore,
        count: int,
        *,
        keys: int = 0,
        due: datetime | None = None,
        payload: bytes = b"x" * 100,
    ) -> None:
        store.ensure_group(TOPIC, "g0", StartFrom.LATEST)
        now = datetime.now(UTC)
        for first in range(0, count, 10_000):
            store.append([
                Message(
                    TOPIC, payload, f"k{number % keys}" if keys else "", str(uuid4()),
                    deliver_at=due, published_at=now,
                )
                for number in range(first, min(first + 10_000, count))
            ])  # fmt: skip


def _recorded(store: SqlStore) -> RecordingDatabase:
    """Have the statements of a store counted from now on."""
    recording = RecordingDatabase(store._database)
    store._database = recording
    return recording


def prepare(url: sa.URL) -> sa.URL:
    """Bring an empty database to the present schema."""
    upgrade(url)
    return url


def _row(payload: bytes) -> AppendRow:
    return AppendRow(TOPIC, str(uuid4()), None, payload, None, 0, 0, time.time_ns() // 1000, False)


def _group_id(floor: Floor) -> int:
    found = floor.run(floor.statements.find_group, TOPIC, "g0")
    assert found is not None
    return found


def _floor_claim_and_ack(floor: Floor, group_id: int, batch: int) -> int:
    rows, *_ = floor.run(floor.statements.claim, group_id, [], batch, LEASE_US, 0, None)
    if rows:
        held = [Held(row.seq, row.token, row.key) for row in rows]
        floor.run(floor.statements.settle, group_id, held, None, None)
    return len(rows)


def _bytes(floor: Floor, url: sa.URL) -> int:
    if url.get_backend_name() == "sqlite":
        pages, size = floor.query("pragma page_count")[0][0], floor.query("pragma page_size")[0][0]
        return int(pages * size)
    return int(
        floor.query(
            "select pg_total_relation_size('queue_messages')"
            " + pg_total_relation_size('queue_deliveries')"
        )[0][0]
    )


def _text(url: sa.URL) -> str:
    return url.render_as_string(hide_password=False)
