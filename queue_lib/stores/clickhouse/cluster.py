"""Replicated tables: how they are asked for, and what makes every replica as good as another.

Each write waits until all replicas have it. So whichever is asked, it has what was acknowledged. A
majority would not do: a replica outside it may get a later part of the log before an earlier one,
and a group's cursor would pass messages that it never saw. The price: one replica that is away
stops the queue until it is back, or is taken out of the cluster.

A write that did not hear from all in time is there or not, and may come later. Whoever comes in for
the next one under the same lock waits for it (see `cluster_statements`). In the log nobody reads it
until then: a group must not lease what another replica cannot deliver.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from queue_lib.errors import InvalidOptionsError, shown
from queue_lib.stores.clickhouse.codec import literal

__all__ = ["CLUSTER_OPTION", "Cluster", "cluster_of", "split_url"]

CLUSTER_OPTION = "queue_lib_cluster"
"""The execution option under which an engine carries its `Cluster`."""

_QUERY = ("cluster", "replicas", "replica_path", "replica_name")
_PATIENCE_MS = 10_000  # for a replica that lags, or was lost just now


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the tables are replicated.

    Raises:
        InvalidOptionsError: something is missing or cannot be right.
    """

    name: str
    """As in ``system.clusters``: one shard, with all the replicas in it."""
    replicas: int
    """How many there are. The store refuses to work when the servers say another number."""
    replica_path: str = ""
    """Where Keeper has the tables; must contain ``{table}`` or ``{uuid}``. Empty: as the server's
    ``default_replica_path`` says."""
    replica_name: str = "{replica}"
    """The name of each replica; used with `replica_path` only."""

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise InvalidOptionsError(f"cluster {shown(self.name)}: must be the name of a cluster")
        if not isinstance(self.replicas, int) or self.replicas < 1:
            raise InvalidOptionsError(f"replicas {shown(self.replicas)}: must be at least 1")
        path = self.replica_path
        if path and "{table}" not in path and "{uuid}" not in path:
            raise InvalidOptionsError(
                f"replica_path {shown(path)}: must contain {{table}} or {{uuid}}, or all tables "
                "would be one"
            )

    def on_cluster(self) -> str:
        """Return the clause that makes a statement run on every replica."""
        name = self.name.replace("\\", "\\\\").replace("`", "\\`")
        return f" ON CLUSTER `{name}`"

    def arguments(self) -> list[str]:
        """Return what every replicated engine has in front of its own parameters, as SQL."""
        return [literal(self.replica_path), literal(self.replica_name)] if self.replica_path else []

    def reading(self) -> dict[str, Any]:
        """Return the settings of a query: a message that not every replica has is not there."""
        return {"select_sequential_consistency": 1, "max_parallel_replicas": 1}

    def writing(self, table: str = "") -> dict[str, Any]:
        """Return the settings of a statement that writes, to `table`; new ones for each."""
        return {
            **self.reading(),
            "insert_quorum": self.replicas,
            # Reading in sequence takes writes one after the other. Publishers are so by themselves;
            # groups, which share a table, write each at its own pace.
            "insert_quorum_parallel": int(not table.endswith("messages")),
            "insert_quorum_timeout": _PATIENCE_MS,
            "insert_keeper_max_retries": 5,
            # A replicated table drops a block that equals an earlier one, unless their tokens
            # differ. (Of late it does so whatever `insert_deduplicate` says.)
            "insert_deduplication_token": uuid.uuid4().hex,
            "distributed_foreground_insert": 1,
            "mutations_sync": 2,
            "lightweight_deletes_sync": 2,
            "replication_wait_for_inactive_replica_timeout": _PATIENCE_MS // 1000,
        }


def split_url(url: sa.URL) -> tuple[sa.URL, Cluster | None]:
    """Take what is about the cluster out of a URL: the drivers do not know it.

    Raises:
        InvalidOptionsError: a parameter is missing, given twice or not valid.
    """
    given: dict[str, Any] = {name: url.query[name] for name in _QUERY if name in url.query}
    if not given:
        return url, None
    for name, value in given.items():
        if not isinstance(value, str):
            raise InvalidOptionsError(f"{name}: is in the URL more than once")
    for name in ("cluster", "replicas"):
        if name not in given:
            raise InvalidOptionsError(f"{name}: is missing in the URL, which has {min(given)}")
    if not given["replicas"].isdecimal():
        raise InvalidOptionsError(f"replicas {shown(given['replicas'])}: must be a number")
    given["replicas"] = int(given["replicas"])
    return url.difference_update_query(_QUERY), Cluster(given.pop("cluster"), **given)


def cluster_of(bind: sa.Engine | sa.Connection) -> Cluster | None:
    """Return the cluster of an engine, or of a connection of one.

    Raises:
        InvalidOptionsError: it has one in its URL, where its driver took it for a setting.
    """
    options: Mapping[str, Any] = bind.get_execution_options()
    cluster = options.get(CLUSTER_OPTION)
    if cluster is not None and not isinstance(cluster, Cluster):
        raise InvalidOptionsError(f"{CLUSTER_OPTION} {shown(cluster)}: must be a Cluster")
    if any(name in bind.engine.url.query for name in _QUERY):
        raise InvalidOptionsError(
            "cluster: an engine does not have it in its URL, but in "
            f"create_engine(…, execution_options={{{CLUSTER_OPTION!r}: Cluster(…)}})"
        )
    return cluster
