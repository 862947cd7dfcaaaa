"""Build the ClickHouse store for an engine or a URL."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from queue_lib.locks import DistributedLocker
from queue_lib.stores.clickhouse.database import Database
from queue_lib.stores.clickhouse.schema import build_clickhouse_tables
from queue_lib.stores.clickhouse.store import ClickHouseStore
from queue_lib.stores.schema import DEFAULT_PREFIX

__all__ = ["open_clickhouse_store"]


def open_clickhouse_store(
    target: sa.Engine | sa.URL,
    locker: DistributedLocker | None = None,
    *,
    schema: str | None = None,
    table_prefix: str = DEFAULT_PREFIX,
    clock: Callable[[], int] | None = None,
) -> ClickHouseStore:
    """Open the store for an engine (borrowed, never disposed of) or a URL.

    Connects to nothing yet. On a cluster the URL says so (``?cluster=NAME&replicas=N``), or an
    engine's execution option `CLUSTER_OPTION`. `schema`: the database of the tables, by default
    that of the connection. `clock`: tests only.

    Raises:
        InvalidOptionsError: what is said of the cluster is not valid.
        UnsupportedError: neither the native nor the HTTP driver of clickhouse-sqlalchemy.
    """
    database = Database(target)
    tables = build_clickhouse_tables(database.name, table_prefix, schema, database.cluster)
    database.expect(tables.database, tables.engines)
    return ClickHouseStore(database, tables, locker, clock=clock)
