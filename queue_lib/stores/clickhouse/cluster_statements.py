"""The statements that a cluster needs in another form: those that no replica can answer alone.

Each replica has a fence table of its own, against which the inserts that it takes are checked. Who
comes in raises the fence on all of them before he reads anything. So a write that another replica
took earlier is on its way to all by then, and he waits for it; and a later one is refused, whatever
replica it comes to. A replica whose fence cannot be reached stops him. It takes no write either,
since it would not be acknowledged: the queue waits.
"""

from __future__ import annotations

from typing import Any

from queue_lib.stores.clickhouse.cluster import Cluster
from queue_lib.stores.clickhouse.codec import literal
from queue_lib.stores.clickhouse.schema import ClickHouseTables
from queue_lib.stores.clickhouse.statements import (
    BODIES,
    FENCE,
    IDS,
    LAST_SEQ,
    NOW,
    PING,
    RAISE,
    WRITTEN_MESSAGES,
    Statements,
)

__all__ = ["ClusterStatements", "statements_for"]

# The fence of a replica that nobody was told of would not be raised, nor would writes wait for that
# replica. (A server that cannot reach Keeper says 0, and refuses every write by itself.)
_CHECKED = (
    "throwIf((SELECT count() FROM system.clusters WHERE cluster = {cluster}) != {replicas} "
    "OR (SELECT countIf(total_replicas NOT IN (0, {replicas})) FROM system.replicas "
    "WHERE database = {database} AND table IN ({replicated})) > 0, "
    "'queue_lib: the cluster or its tables have another number of replicas than configured')"
)

# Reading in sequence leaves out what Keeper does not call complete, and a member of Keeper may be
# behind. In front of a cursor that is a matter of time; a look for what is there must find it.
_AS_IT_IS = " SETTINGS select_sequential_consistency = 0"

# {everywhere} is the fence tables of all replicas, each of them a shard, without the last bracket.
_VARIANTS = {
    FENCE: (
        f"SELECT max(fence) + {_CHECKED}, argMax(locker, fence) FROM {{everywhere}}) "
        "WHERE name = {name}"
    ),
    # A row for each shard. A replica that has a higher one refuses it: error 469.
    RAISE: (
        "INSERT INTO FUNCTION {everywhere}, rowNumberInBlock()) (name, fence, locker) "
        "SELECT {name}, toUInt64({fence}), toUInt64({locker}) FROM numbers({replicas})"
    ),
    # Clocks differ: the queue's is the one that is ahead, so that no lease ends early. (`now64`
    # would be asked once, by the server that has the query.)
    NOW: (
        "SELECT max(toUnixTimestamp64Micro(nowInBlock64(6))) "
        "FROM clusterAllReplicas({cluster}, 'system', 'one')"
    ),
    **{template: template + _AS_IT_IS for template in (BODIES, IDS, LAST_SEQ, WRITTEN_MESSAGES)},
    PING: f"{PING}, (SELECT max(fence) + {_CHECKED} FROM {{everywhere}}))",
}

# A replica that lacks a write, of this lock's, has a lower maximum than the one that took it.
_SETTLED = f"SELECT uniqExact(last) FROM clusterAllReplicas({{{{cluster}}}}, view({{}})){_AS_IT_IS}"
_MESSAGES_SETTLED = _SETTLED.format("SELECT max(seq) AS last FROM {q}messages")
_GROUP_SETTLED = _SETTLED.format(
    "SELECT max(ver) AS last FROM {q}live WHERE topic = {topic} AND grp = {group}"
)


class ClusterStatements(Statements):
    """Fills in the statements for tables on a cluster."""

    def __init__(self, tables: ClickHouseTables, cluster: Cluster) -> None:
        super().__init__(tables)
        name, database = literal(cluster.name), literal(tables.database)
        messages, live, fence = (
            f"{tables.prefix}{table}" for table in ("messages", "live", "fence")
        )
        self._names |= {
            "cluster": name,
            "database": database,
            "replicas": literal(cluster.replicas),
            "replicated": literal([messages, live]),
            "everywhere": f"clusterAllReplicas({name}, {database}, {literal(fence)}",
        }

    def settled(self, topic: str = "", group: str = "") -> str:
        """See `Statements.settled`."""
        query = _GROUP_SETTLED if topic else _MESSAGES_SETTLED
        return self.fill(query, topic=topic, group=group)

    def fill(self, template: str, **values: Any) -> str:
        """See `Statements.fill`."""
        return super().fill(_VARIANTS.get(template, template), **values)


def statements_for(tables: ClickHouseTables) -> Statements:
    """Return what fills in the statements for some tables."""
    return ClusterStatements(tables, tables.cluster) if tables.cluster else Statements(tables)
