"""One store for each test of the engine suite, and queues on it that are closed at its end."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from queue_lib import EngineConfig, Store, migrate, new_store_queue
from queue_lib.engine.queue import StoreQueue
from queue_lib.stores.memory import MemoryStore
from queue_lib.testing.conformance.case import together
from tests.engine.harness import Backend

_SQL = frozenset({"shared", "transactional", "wake"})


class OpenQueue(Protocol):
    """Opens another queue on the data of the test: on a new handle, or on the given store."""

    def __call__(
        self, store: Store | None = None, config: EngineConfig | None = None
    ) -> StoreQueue: ...


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """The store of the test; a mark `requires` skips those that lack a capability."""
    name = request.param
    capabilities = frozenset() if name == "memory" else _SQL
    needed = {name for mark in request.node.iter_markers("requires") for name in mark.args}
    if missing := needed - capabilities:
        pytest.skip(f"{name} lacks {', '.join(sorted(missing))}")
    if name == "memory":
        return Backend(name, capabilities, memory=MemoryStore())
    fixture = "sqlite_migrated_url" if name == "sqlite" else "postgres_migrated_url"
    return Backend(name, capabilities, request.getfixturevalue(fixture))


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_migrated_url(_sqlite_template: Path, tmp_path: Path) -> str:
    """The URL of a new file that has the tables, without a row."""
    path = tmp_path / "queue.db"
    shutil.copy(_sqlite_template, path)
    return f"sqlite:///{path}"


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
