"""One store for each test of the engine suite, and queues on it that are closed at its end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from queue_lib import EngineConfig, ProcessLocker, Store, migrate, new_store_queue
from queue_lib.engine.queue import StoreQueue
from queue_lib.lockers.sql import SQLLocker
from queue_lib.stores.memory import MemoryStore
from queue_lib.testing.conformance.case import together
from tests.clickhouse_server import ClickHouseServer
from tests.engine.harness import LOCK_TTL, Backend

_SQL = frozenset({"shared", "transactional", "wake"})
_CAPABILITIES = {
    "memory": frozenset[str](),
    "sqlite": _SQL,
    "postgres": _SQL,
    "clickhouse": frozenset({"shared"}),
}
_LATENCY = 0.04
"""Seconds that an operation on ClickHouse may take."""


class OpenQueue(Protocol):
    """Opens another queue on the data of the test: on a new handle, or on the given store."""

    def __call__(
        self, store: Store | None = None, config: EngineConfig | None = None
    ) -> StoreQueue: ...


@pytest.fixture(params=_CAPABILITIES)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """The store of the test; a mark `requires` skips those that lack a capability."""
    name: str = request.param
    capabilities = _CAPABILITIES[name]
    needed = {name for mark in request.node.iter_markers("requires") for name in mark.args}
    if missing := needed - capabilities:
        pytest.skip(f"{name} lacks {', '.join(sorted(missing))}")
    if name == "memory":
        yield Backend(name, capabilities, memory=MemoryStore())
        return
    url: str = request.getfixturevalue(f"{name}_migrated_url")
    if name != "clickhouse":
        yield Backend(name, capabilities, url)
    elif "shared" not in needed:
        yield Backend(name, capabilities, url, "", _LATENCY, locker=ProcessLocker())
    else:
        locks = f"sqlite:///{tmp_path / 'locks.db'}"
        with SQLLocker(locks, ttl=LOCK_TTL) as locker:
            yield Backend(name, capabilities, url, locks, _LATENCY, locker=locker)


@pytest.fixture
def clickhouse_migrated_url(clickhouse_server: ClickHouseServer, clickhouse_database: str) -> str:
    """The URL of a new database that has the tables, without a row."""
    url = clickhouse_server.url(clickhouse_database)
    migrate.upgrade(url)
    return url


@pytest.fixture
def open_queue(backend: Backend) -> Iterator[OpenQueue]:
    """Open queues on the store of the test; they are closed at its end."""
    queues: list[StoreQueue] = []

    def opened(store: Store | None = None, config: EngineConfig | None = None) -> StoreQueue:
        queues.append(new_store_queue(backend.open() if store is None else store, config))
        return queues[-1]

    yield opened
    if queues:
        together(len(queues), lambda number: queues[number].close(timeout=5))


@pytest.fixture
def queue(open_queue: OpenQueue) -> StoreQueue:
    """A queue on the store of the test."""
    return open_queue()


@pytest.fixture
def eager_switches() -> Iterator[None]:
    """Have threads interleave as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
