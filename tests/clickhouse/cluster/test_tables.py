"""The tables are on all replicas, and others are refused."""

from __future__ import annotations

import os
from typing import Any

import pytest
from alembic import command

if not os.environ.get("CI"):
    pytest.importorskip("clickhouse_sqlalchemy", reason="the extra clickhouse is not installed")

from queue_lib import migrate
from queue_lib.errors import SchemaError, StoreError
from queue_lib.stores.clickhouse.schema import build_clickhouse_tables, create_statements_v1
from tests.clickhouse.child import message

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def test_migrations_reach_every_replica(cluster, database):
    def tables(replica: Any) -> set[str]:
        rows = replica.execute(f"SHOW TABLES FROM {database}")
        return {name for (name,) in rows}

    one, two = cluster.url(database, 0), cluster.url(database, 1)
    with cluster.distributed_ddl() as done:
        for _ in range(2):
            migrate.upgrade(one)
            migrate.upgrade(two)
            assert migrate.current(one) == migrate.current(two) == "ql0001"
            command.check(migrate.alembic_config(two))
            assert tables(cluster.replicas[0]) == tables(cluster.replicas[1])
            assert len(tables(cluster.replicas[0])) == 4
            migrate.downgrade(two, revision="base")
            assert migrate.current(one) is None
            assert tables(cluster.replicas[0]) == tables(cluster.replicas[1]) == set()
    assert {statement.split()[0] for statement in done} == {"CREATE", "DROP"}


def test_tables_that_were_made_otherwise_are_refused(cluster, tables, database, open_store):
    plain = cluster.url(tables).set(query={})
    with pytest.raises(StoreError, match=r"Replicated.*, but a queue on one server needs"):
        open_store(plain).append([message("a")])
    with pytest.raises(StoreError, match="another number of replicas"):
        open_store(cluster.url(tables).update_query_dict({"replicas": "3"})).append([message("a")])
    alone = cluster.replicas[0]
    for name in ("messages", "live", "fence"):
        cluster.everywhere(f"DROP TABLE {database}.queue_{name} SYNC")
    with pytest.raises(SchemaError):
        open_store(plain).append([message("a")])
    for statement in create_statements_v1(build_clickhouse_tables(database)):
        alone.execute(statement)
    with pytest.raises(StoreError, match="but a queue on the cluster 'main' needs Replicated"):
        open_store(cluster.url(database)).append([message("a")])
    open_store(plain).append([message("a")])
    alone.execute(f"RENAME TABLE {database}.queue_messages TO {database}.local")
    alone.execute(
        f"CREATE TABLE {database}.queue_messages AS {database}.local "
        f"ENGINE = Distributed(main, {database}, local)"
    )
    with pytest.raises(StoreError, match="engine Distributed"):
        open_store(plain).ping()
