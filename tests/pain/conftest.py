"""The stores of the engine suite, and servers of our own that a test may crash."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from queue_lib import EngineConfig, Store, new_store_queue
from queue_lib.engine.queue import StoreQueue
from tests.clickhouse_server import ClickHouseServer, _new_server
from tests.conftest import _own_server
from tests.engine.conftest import backend, clickhouse_migrated_url, open_queue, queue
from tests.servers import PostgresServer

__all__ = [
    "OwnQueue",
    "backend",
    "clickhouse_migrated_url",
    "crashable_clickhouse",
    "crashable_postgres",
    "open_queue",
    "own_queue",
    "queue",
]


class OwnQueue(Protocol):
    """Opens a queue on a store that is none of the engine suite's."""

    def __call__(self, store: Store, config: EngineConfig | None = None) -> StoreQueue: ...


@pytest.fixture
def own_queue() -> Iterator[OwnQueue]:
    """Open queues on any store; they are closed at the end of the test."""
    with ExitStack() as stack:

        def opened(store: Store, config: EngineConfig | None = None) -> StoreQueue:
            queue = new_store_queue(store, config)
            stack.callback(queue.close, timeout=5)
            return queue

        yield opened


@pytest.fixture(scope="session")
def crashable_postgres() -> Iterator[PostgresServer]:
    """A server that a test may stop, if it starts it again."""
    with _own_server() as server:
        yield server


@pytest.fixture(scope="session")
def crashable_clickhouse() -> Iterator[ClickHouseServer]:
    """A server that a test may stop, if it starts it again."""
    with _new_server() as server:
        yield server
