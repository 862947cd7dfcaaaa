"""What Alembic needs to know about ClickHouse, and how migrators wait for each other there.

`clickhouse_sqlalchemy.alembic` imports private names of Alembic that its later releases no longer
have; this module takes its place.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from alembic.ddl.impl import DefaultImpl
from clickhouse_sqlalchemy import Table, engines
from clickhouse_sqlalchemy import types as T  # noqa: N812 - as its documentation has it

from queue_lib.errors import StoreUnavailableError
from queue_lib.stores.clickhouse.cluster import Cluster, cluster_of
from queue_lib.stores.clickhouse.errors import DRIVER_ERRORS, code_of, translate
from queue_lib.stores.clickhouse.schema import COLUMNS, ClickHouseTables, build_clickhouse_tables

__all__ = [
    "ClickHouseImpl",
    "drop_version_table",
    "migrating",
    "prepared",
    "table_metadata",
    "tables_of",
]

_TABLE_EXISTS = 57
_PATIENCE = 60.0  # seconds, for another migrator
_NO_ORDER = sa.func.tuple()

_TYPES = {
    "String": T.String, "UInt8": T.UInt8, "UInt32": T.UInt32, "UInt64": T.UInt64,
    "Int32": T.Int32, "Int64": T.Int64, "LowCardinality(String)": T.LowCardinality(T.String),
}  # fmt: skip


class ClickHouseImpl(DefaultImpl):
    """Alembic's view of ClickHouse: no transactions, and a version table with an engine."""

    __dialect__ = "clickhouse"
    transactional_ddl = False

    def version_table_impl(
        self,
        *,
        version_table: str,
        version_table_schema: str | None,
        version_table_pk: bool,
        **_: Any,
    ) -> sa.Table:
        cluster = cluster_of(self.bind) if self.bind else None
        table: sa.Table = Table(
            version_table,
            sa.MetaData(),
            sa.Column("version_num", T.String(), nullable=False),
            _ReplicatedMergeTree(cluster) if cluster else engines.MergeTree(order_by=_NO_ORDER),
            schema=version_table_schema,
            clickhouse_cluster=cluster.name if cluster else None,
        )
        return table


class _ReplicatedMergeTree(engines.MergeTree):  # type: ignore[misc]  # without types
    """The library's own cannot do without a path."""

    name = "ReplicatedMergeTree"

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(order_by=_NO_ORDER)
        self._cluster = cluster

    def get_parameters(self) -> list[str]:
        return self._cluster.arguments()


def tables_of(connection: sa.Connection, prefix: str, schema: str | None) -> ClickHouseTables:
    """Describe the tables that a connection migrates."""
    return build_clickhouse_tables(
        connection.engine.url.database, prefix, schema, cluster_of(connection)
    )


def drop_version_table(connection: sa.Connection, tables: ClickHouseTables, name: str) -> None:
    """Drop the table, and all that Keeper knows of it, before anybody makes it again."""
    connection.exec_driver_sql(
        f"DROP TABLE IF EXISTS {tables.in_database(name)}{tables.on_cluster} SYNC"
    )


def table_metadata(prefix: str, schema: str | None) -> sa.MetaData:
    """Describe the tables for autogenerate and `check`."""
    metadata = sa.MetaData(schema=schema)
    for name, columns in COLUMNS.items():
        Table(
            f"{prefix}{name}",
            metadata,
            *(
                sa.Column(column, _TYPES[type_], nullable=False)
                for column, type_ in columns.items()
            ),
            engines.MergeTree(order_by=_NO_ORDER),  # is not compared
        )
    return metadata


@contextmanager
def prepared(connection: sa.Connection) -> Iterator[None]:
    """Make a connection fit for Alembic, and its driver's errors ours."""
    driver: Any = connection.connection.driver_connection
    # The version is changed by a mutation: it must be done when the statement is.
    client = driver.transport
    settings = client.settings if hasattr(client, "settings") else client.ch_settings
    before = dict(settings)
    settings["mutations_sync"] = 2
    cluster = cluster_of(connection)
    if cluster:
        settings.update(cluster.writing())  # a run inserts no more than one version
    dialect: Any = connection.dialect
    reflect = dialect.get_pk_constraint

    def named(*args: Any, **kwargs: Any) -> dict[str, Any]:
        # Alembic asks for a key that the dialect's answer lacks.
        return {"name": None, "constrained_columns": [], **(reflect(*args, **kwargs) or {})}

    dialect.get_pk_constraint = named
    # The dialect's own cannot read the engine of `live`, and files tables of another database under
    # the wrong name. Engines are not compared.
    dialect.inspector = sa.Inspector
    try:
        yield
    except DRIVER_ERRORS as error:
        raise translate(error) from error
    finally:
        del dialect.get_pk_constraint
        del dialect.inspector
        settings.clear()
        settings.update(before)


@contextmanager
def migrating(connection: sa.Connection, prefix: str, schema: str | None) -> Iterator[None]:
    """Keep other migrators out while this one works.

    There are no transactions to wait in. But of all that create a table, one succeeds: that one
    migrates, and drops it afterwards.

    Raises:
        StoreUnavailableError: the table stayed: somebody is at it, or was and crashed.
    """
    tables = tables_of(connection, prefix, schema)
    name = f"{tables.qualifier}lib_migrating"
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            # On a cluster too: its servers do such statements one after the other, in one order.
            connection.exec_driver_sql(
                f"CREATE TABLE {name}{tables.on_cluster} (x UInt8) ENGINE = Memory"
            )
            break
        except DRIVER_ERRORS as error:
            if code_of(error) != _TABLE_EXISTS:
                raise
            if time.monotonic() > deadline:
                raise StoreUnavailableError(
                    f"the table {name} says that another migration is running; if none is, one "
                    f"was cut off: look at the tables, then DROP TABLE {name}{tables.on_cluster}"
                ) from error
        time.sleep(0.05)
    try:
        yield
    finally:
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}{tables.on_cluster} SYNC")
