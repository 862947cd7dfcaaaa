"""Locks in the server's own Keeper, which here is in memory: a restart forgets them all."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

if not os.environ.get("CI"):
    pytest.importorskip("clickhouse_sqlalchemy", reason="the extra clickhouse is not installed")

from queue_lib import migrate
from queue_lib.errors import StoreError, StoreUnavailableError
from queue_lib.lockers.keeper_map import KeeperMapLocker
from queue_lib.options import StartFrom
from queue_lib.stores.base import Stats
from tests.clickhouse.child import GROUP, TOPIC, claim, message
from tests.clickhouse_server import ClickHouseServer

if TYPE_CHECKING:
    from queue_lib.stores.clickhouse.store import ClickHouseStore


@pytest.mark.slow
def test_the_queue_goes_on_once_a_forgotten_table_of_locks_is_dropped(
    clickhouse_own_server: ClickHouseServer, open_store: Callable[..., ClickHouseStore]
):
    """The locker counts from 1 again; what was leased, published and finished stays so."""
    server, database = clickhouse_own_server, clickhouse_own_server.create_database()
    url = server.url(database)
    migrate.upgrade(url)
    with KeeperMapLocker(url, ttl=1) as locker:
        store, other = open_store(url, locker=locker), open_store(url, locker=locker)
        store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
        store.append([message(name) for name in "abcdef"])
        acked, held = claim(store, 2), claim(other, 2)
        assert len(store.ack(acked)) == 2

        operations: list[Callable[[], Any]] = [
            lambda: store.append([message("g")]),
            lambda: claim(other, 1),
            lambda: other.ack(held),
        ]
        server.kill()
        with pytest.raises(StoreUnavailableError):
            locker.acquire("k", timedelta(0))
        server.start()
        for operate in operations:
            with pytest.raises(StoreError, match="Please DROP"):
                operate()
        server.execute(f"DROP TABLE {database}.queue_locks SYNC")
        results = [operate() for operate in operations]

        assert [found.message.id for found in results[1]] == ["e"]
        assert results[2] == [found.delivery_id for found in held]
        assert [found.message.id for found in claim(store)] == ["f", "g"]
        assert store.stats(TOPIC, GROUP) == Stats(leased=3)
        assert locker.acquire("k", timedelta(0)).fence == 1
