"""The tables on ClickHouse: what each is for, and why it has the engine that it has.

- ``messages``: a log, sorted by topic and sequence number. Publishing is one INSERT into it, for
  any number of groups. Nothing else is ever written at a publish, so nothing can be half done.
- ``live``: for each group a cursor in the log, and a row for each delivery at or below it that is
  leased, due again, timed, dead, or in a lane. A move is one INSERT of versioned rows (the old
  place with ``del = 1``, the new one), one block, one part: atomic. It must never be partitioned.
- ``fence``: for each lock the fencing number of its holder. The CHECK constraints of the other
  two refuse (error 469) whoever writes with a lower one, whatever his clock says. Not replicated:
  on a cluster each replica has its own, and who comes in raises all of them (see `statements`).
"""

from __future__ import annotations

from dataclasses import dataclass

from queue_lib.stores.clickhouse.cluster import Cluster
from queue_lib.stores.schema import DEFAULT_PREFIX, build_tables

__all__ = [
    "COLUMNS",
    "CURSOR",
    "DEAD",
    "FENCE_BITS",
    "LANE",
    "LEASED",
    "LIVE_COLUMNS",
    "MESSAGE_COLUMNS",
    "PUBLISH",
    "READY",
    "TIMER",
    "ClickHouseTables",
    "build_clickhouse_tables",
    "create_statements_v1",
    "drop_statements_v1",
]

# The kinds of rows in `live`, and what `n` is: they are sorted by (kind, lane, n, seq).
READY = 0  # due and not leased: n = priority; at = since when
LANE = 1  # a live delivery with a key: lane = key, n = 0; at = its schedule. The first is the head
DEAD = 2  # dead-lettered: n = when
TIMER = 3  # scheduled, or backing off: n = when it is due
LEASED = 4  # n = 0; lease = its end
CURSOR = (
    5  # one for each group: cursor, low, start; at = when it was registered; lease = see `late`
)

FENCE_BITS = 20  # of `seq` and `ver` count within one hold of a lock; the rest is its fence

PUBLISH = "p"
"""The name of the lock, and of the fence, that every publish runs under."""

_FENCE = {"name": "String", "fence": "UInt64", "locker": "UInt64"}
_MESSAGES = {
    "topic": "LowCardinality(String)", "seq": "UInt64", "id": "String", "key": "String",
    "prio": "Int32", "due": "Int64", "published": "Int64", "stored": "Int64",
    "dead_letter": "UInt8", "headers": "String", "payload": "String",
}  # fmt: skip
_LIVE = {
    "topic": "LowCardinality(String)", "grp": "LowCardinality(String)", "kind": "UInt8",
    "lane": "String", "n": "Int64", "seq": "UInt64", "ver": "UInt64", "del": "UInt8",
    "key": "String", "prio": "Int32", "at": "Int64", "lease": "Int64", "token": "String",
    "attempts": "UInt32", "error": "String", "cursor": "UInt64", "low": "UInt64",
    "start": "UInt64",
}  # fmt: skip

COLUMNS = {"fence": _FENCE, "messages": _MESSAGES, "live": _LIVE}
"""The columns of each table, and their types."""

MESSAGE_COLUMNS = tuple(_MESSAGES)
LIVE_COLUMNS = tuple(_LIVE)


@dataclass(frozen=True, slots=True)
class ClickHouseTables:
    """The tables of one queue in one database."""

    database: str
    prefix: str
    cluster: Cluster | None = None

    @property
    def qualifier(self) -> str:
        """What every table's name begins with."""
        return self.in_database(self.prefix)

    @property
    def raw_qualifier(self) -> str:
        """The same for a name inside a string literal: `joinGet` takes no quotes in it."""
        return f"{self.database}.{self.prefix}".replace("\\", "\\\\").replace("'", "\\'")

    def in_database(self, name: str) -> str:
        """Return the qualified form of a plain name."""
        quoted = self.database.replace("\\", "\\\\").replace("`", "\\`")
        return f"`{quoted}`.{name}"

    @property
    def on_cluster(self) -> str:
        """The clause that makes a statement about a table run on every replica."""
        return self.cluster.on_cluster() if self.cluster else ""

    def engine(self, name: str, *parameters: str) -> str:
        """Return a table engine with its parameters: replicated on a cluster."""
        if self.cluster:
            name, parameters = f"Replicated{name}", (*self.cluster.arguments(), *parameters)
        return f"{name}({', '.join(parameters)})"

    @property
    def engines(self) -> dict[str, str]:
        """The engine that each table must have, by its name."""
        replicated = "Replicated" if self.cluster else ""
        return {
            f"{self.prefix}fence": "Join",
            f"{self.prefix}messages": f"{replicated}MergeTree",
            f"{self.prefix}live": f"{replicated}ReplacingMergeTree",
        }

    def qualify(self, text: str) -> str:
        """Put the qualifiers in place of each ``{q}`` and ``{raw}``, the cluster's of ``{on}``."""
        return (
            text.replace("{q}", self.qualifier)
            .replace("{raw}", self.raw_qualifier)
            .replace("{on}", self.on_cluster)
        )


def build_clickhouse_tables(
    database: str | None,
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
    cluster: Cluster | None = None,
) -> ClickHouseTables:
    """Describe the tables: in the database `schema`, else in that of the connection.

    Raises:
        InvalidOptionsError: not a plain lower-case identifier of at most 31 characters.
    """
    build_tables(prefix, schema)  # checks both
    return ClickHouseTables(schema or database or "default", prefix, cluster)


def create_statements_v1(tables: ClickHouseTables) -> list[str]:
    """Return what creates the tables. Frozen, as the revision is that runs it."""
    # In memory (persistent = 0): a raise costs no file. Empty after a restart of the server, which
    # refuses every write until its holder comes in again.
    # On a cluster each replica has its own, and whoever raises it raises all: the constraint is for
    # those that have been raised higher meanwhile.
    upwards = ""
    if tables.cluster:
        upwards = """,
  CONSTRAINT upwards CHECK fence > ifNull(joinGetOrNull('{raw}fence', 'fence', name), 0)"""
    fence = f"""
CREATE TABLE {{q}}fence{{on}} (name String, fence UInt64, locker UInt64{upwards})
ENGINE = Join(ANY, LEFT, name) SETTINGS join_any_take_last_row = 1, persistent = 0"""
    # A bloom index finds ids. Not a projection: a purged id would stay found in it. So exact, and
    # of so many rows each, because a thousand ids are looked up at once: at the usual one false
    # hit in a thousand, two thirds of all ids would be read.
    messages = f"""
CREATE TABLE {{q}}messages{{on}} (
  topic LowCardinality(String), seq UInt64, id String, key String, prio Int32,
  due Int64, published Int64, stored Int64, dead_letter UInt8, headers String,
  payload String CODEC(ZSTD(1)),
  INDEX ix_id id TYPE bloom_filter(0.000001) GRANULARITY 64,
  CONSTRAINT fenced CHECK
    bitShiftRight(seq, 20) >= joinGetOrNull('{{raw}}fence', 'fence', 'p'))
ENGINE = {tables.engine("MergeTree")}
PARTITION BY toYYYYMMDD(toDateTime(intDiv(stored, 1000000), 'UTC'))
ORDER BY (topic, seq) SETTINGS index_granularity = 256"""
    # Never with a TTL on `del`: a tombstone whose part was cleaned first would bring its row back.
    live = f"""
CREATE TABLE {{q}}live{{on}} (
  topic LowCardinality(String), grp LowCardinality(String), kind UInt8, lane String, n Int64,
  seq UInt64, ver UInt64, del UInt8, key String, prio Int32, at Int64, lease Int64, token String,
  attempts UInt32, error String, cursor UInt64, low UInt64, start UInt64,
  CONSTRAINT fenced CHECK
    bitShiftRight(ver, 20) >= joinGetOrNull('{{raw}}fence', 'fence', concat('g:', topic, ':', grp)))
ENGINE = {tables.engine("ReplacingMergeTree", "ver", "del")}
ORDER BY (topic, grp, kind, lane, n, seq) SETTINGS index_granularity = 256"""
    return [tables.qualify(text) for text in (fence, messages, live)]


def drop_statements_v1(tables: ClickHouseTables) -> list[str]:
    """Return what drops the tables, with their rows. Frozen."""
    return [
        tables.qualify(f"DROP TABLE {{q}}{name}{{on}} SYNC")
        for name in ("live", "messages", "fence")
    ]
