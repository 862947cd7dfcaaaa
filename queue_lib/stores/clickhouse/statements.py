"""The SQL of this store: each statement once, with what it is that way for.

Filled in by `Statements`: ``{q}`` is what the tables' names begin with (``{raw}`` inside a string),
the other names are values.
Everything is read with FINAL: the newest version of each row, no tombstones. FINAL stops at a
LIMIT only if it reads in the order of the whole sorting key, on one thread, in small blocks.
"""

from __future__ import annotations

from typing import Any

from queue_lib.stores.clickhouse.codec import literal
from queue_lib.stores.clickhouse.schema import ClickHouseTables

__all__ = ["Statements"]

_SORTED = (
    "ORDER BY topic, grp, kind, lane, n, seq LIMIT {limit} "
    "SETTINGS max_threads = 1, max_block_size = 1024, use_query_condition_cache = 0"
)
_GROUP = "topic = {topic} AND grp = {group}"

NOW = "SELECT toUnixTimestamp64Micro(now64(6))"

PING = "SELECT joinGetOrNull('{raw}fence', 'fence', ''), (SELECT count() FROM (SELECT seq, dead_letter FROM {q}messages LIMIT 1)), (SELECT count() FROM (SELECT ver, cursor FROM {q}live LIMIT 1))"  # noqa: E501

# -- fences ------------------------------------------------------------------------------------

FENCE = (
    "SELECT ifNull(joinGetOrNull('{raw}fence', 'fence', {name}), 0), "
    "ifNull(joinGetOrNull('{raw}fence', 'locker', {name}), 0)"
)
# Only upwards: whoever was stopped before his raise must not take back that of a newcomer.
RAISE = (
    "INSERT INTO {q}fence (name, fence, locker) SELECT {name}, toUInt64({fence}), "
    "toUInt64({locker}) WHERE {fence} > ifNull(joinGetOrNull('{raw}fence', 'fence', {name}), 0)"
)
# Only after a restart of the server or the locker: what was ever written under this lock. The
# groups' cursors too: they stay when the messages they came by have been purged.
WRITTEN_MESSAGES = (
    "SELECT greatest((SELECT max(seq) FROM {q}messages), "
    "(SELECT max(greatest(cursor, start)) FROM {q}live WHERE kind = 5))"
)
WRITTEN_LIVE = f"SELECT max(ver) FROM {{q}}live WHERE {_GROUP}"

# -- publish -----------------------------------------------------------------------------------

IDS = "SELECT id FROM {q}messages WHERE id IN ({ids})"
LAST_SEQ = "SELECT max(seq) FROM {q}messages WHERE topic = {topic}"
GROUPS_BEYOND = (
    "SELECT grp FROM {q}live FINAL WHERE topic = {topic} AND kind = 5 AND cursor >= {seq}"
)
UNCHECKED = (
    "SELECT topic, grp, cursor, start, lease FROM {q}live FINAL WHERE kind = 5 AND lease < {before}"
)
# Whole turns of publishers, each of them one block: it was there when the group came by, or not.
MISSED = (
    "SELECT seq FROM {q}messages WHERE topic = {topic} AND seq > {start} AND seq <= {cursor} "
    "AND stored >= {since} AND bitShiftRight(seq, 20) NOT IN (SELECT bitShiftRight(seq, 20) "
    f"FROM {{q}}live WHERE {_GROUP} AND kind IN (0, 1, 2, 3, 4)) ORDER BY seq"
)
# Tombstones count: who has one was seen by the group.
SEEN = f"SELECT DISTINCT seq FROM {{q}}live WHERE {_GROUP} AND kind IN (0, 1, 2, 3, 4) AND seq IN ({{seqs}})"  # noqa: E501

# -- a group coming in cold ----------------------------------------------------------------------

GROUP = f"SELECT cursor, low, start, at, lease, error FROM {{q}}live FINAL WHERE {_GROUP} AND kind = 5 AND lane = '' AND n = 0 AND seq = 0"  # noqa: E501
# From the low mark on: the tombstones of millions of finished deliveries lie below it.
LEASED = (
    "SELECT seq, key, prio, lease, token, attempts, error FROM {q}live FINAL "
    f"WHERE {_GROUP} AND kind = 4 AND lane = '' AND n = 0 AND seq >= {{low}} "
    "SETTINGS max_threads = 1, use_query_condition_cache = 0"
)
# The next ones of READY or TIMER, after (n, seq).
WINDOW = (
    "SELECT n, seq, key, prio, at, attempts, error FROM {q}live FINAL "
    f"WHERE {_GROUP} AND kind = {{kind}} AND lane = '' AND seq >= {{low}} "
    f"AND n >= {{n}} AND (n > {{n}} OR seq > {{seq}}) {_SORTED}"
)
LANES = (
    "SELECT lane, seq, prio, at FROM {q}live FINAL "
    f"WHERE {_GROUP} AND kind = 1 AND lane IN ({{keys}}) AND n = 0 AND seq >= {{low}} "
    "ORDER BY topic, grp, kind, lane, n, seq LIMIT {limit} BY lane "
    "SETTINGS max_threads = 1, max_block_size = 1024, use_query_condition_cache = 0"
)
LANE = (
    "SELECT lane, seq, prio, at FROM {q}live FINAL "
    f"WHERE {_GROUP} AND kind = 1 AND lane = {{key}} AND n = 0 AND seq > {{seq}} {_SORTED}"
)

# -- claim -------------------------------------------------------------------------------------

# As many as begin within so many bytes: lengths are read without the payloads themselves.
LOG = (
    "SELECT seq, id, key, prio, due, published, stored, headers, payload FROM {q}messages "
    "WHERE topic = {topic} AND seq > {seq} AND seq <= ("
    "SELECT maxIf(seq, size < {bytes}) FROM ("
    "SELECT seq, sum(length) OVER (ORDER BY seq) - length AS size FROM ("
    "SELECT seq, length(payload) AS length FROM {q}messages "
    "WHERE topic = {topic} AND seq > {seq} ORDER BY topic, seq LIMIT {limit}))) "
    "ORDER BY topic, seq LIMIT {limit} "
    "SETTINGS max_threads = 1, max_block_size = 1024, use_query_condition_cache = 0"
)
BODIES = (
    "SELECT seq, id, key, prio, due, published, stored, headers, payload FROM {q}messages "
    "WHERE topic = {topic} AND seq IN ({seqs})"
)
# A priority anywhere in the log overtakes what is in front of it.
AHEAD = "SELECT max(seq), countIf(prio != 0) FROM {q}messages WHERE topic = {topic} AND seq > {seq}"
# Believed only if it is our token and nobody has raised the fence since. The last row looks for
# priorities that came meanwhile, for the next claim, if there is more of the log than we know.
READ_BACK = (
    "SELECT toUInt8(0), seq, toUInt64(0) FROM {q}live FINAL "
    f"WHERE {_GROUP} AND kind = 4 AND lane = '' AND n = 0 AND seq IN ({{seqs}}) "
    "AND token = {token} UNION ALL "
    "SELECT toUInt8(1), ifNull(joinGetOrNull('{raw}fence', 'fence', {name}), toUInt64(0)), "
    "toUInt64(0) UNION ALL "
    "SELECT toUInt8(2), max(seq), countIf(prio != 0) FROM {q}messages "
    "WHERE topic = {topic} AND seq > {cursor} AND {log} = 1 "
    "SETTINGS max_threads = 1, use_query_condition_cache = 0"
)

_PUT = (
    "INSERT INTO {q}live (topic, grp, kind, lane, n, seq, ver, del, key, prio, at, lease, token, "
    "attempts, error, cursor, low, start) "
)

# Moves the cursor over (cursor, upto] inside the server, about a microsecond a row: each message
# into READY or TIMER, with a key into its lane, and into READY or TIMER only if the lane is empty
# before it. One INSERT with the new cursor, so it happens whole or not at all.
PASS = (
    _PUT
    + """
SELECT {topic}, {group}, toUInt8(kind), if(kind = 1, key, ''),
       multiIf(kind = 0, toInt64(prio), kind = 3, due, toInt64(0)), seq, toUInt64({ver}),
       toUInt8(0), key, prio, if(kind = 0, greatest(stored, due, {registered}), due), toInt64(0),
       '', toUInt32(0), '', toUInt64(0), toUInt64(0), toUInt64(0)
FROM (
  SELECT seq, key, prio, due, stored,
         arrayJoin(multiIf(key = '', [place], is_head, [1, place], [1])) AS kind
  FROM (
    SELECT seq, key, prio, due, stored, if(due > {now}, 3, 0) AS place,
           key != '' AND row_number() OVER (PARTITION BY key ORDER BY seq) = 1
             AND key NOT IN (SELECT lane FROM {q}live FINAL
                             WHERE topic = {topic} AND grp = {group} AND kind = 1
                               AND lane IN (SELECT key FROM {q}messages WHERE topic = {topic}
                                            AND seq > {cursor} AND seq <= {upto} AND key != ''))
           AS is_head
    FROM {q}messages WHERE topic = {topic} AND seq > {cursor} AND seq <= {upto}))
UNION ALL
SELECT {topic}, {group}, toUInt8(5), '', toInt64(0), toUInt64(0), toUInt64({ver}),
       toUInt8(0), '', toInt32(0), toInt64({registered}), toInt64({checked}), '',
       toUInt32(0), {pins}, toUInt64({upto}), toUInt64({low}), toUInt64({start})"""
)
# Where a pass of at most so many rows ends.
UPTO = (
    "SELECT max(seq), count() FROM (SELECT seq FROM {q}messages WHERE topic = {topic} "
    "AND seq > {seq} ORDER BY topic, seq LIMIT {limit} SETTINGS max_threads = 1)"
)
# Timers that are over become ready, inside the server: for when very many end at once.
RIPEN = (
    _PUT
    + """
SELECT topic, grp, to, '', if(to = 0, toInt64(prio), n), seq, {ver}, to = 3, key, prio, n, 0, '',
       attempts, error, 0, 0, 0
FROM (
  SELECT topic, grp, n, seq, key, prio, attempts, error, arrayJoin([0, 3]) AS to
  FROM {q}live FINAL
  WHERE topic = {topic} AND grp = {group} AND kind = 3 AND lane = '' AND n <= {now}
  ORDER BY n, seq LIMIT {limit})"""
)

# -- counting ----------------------------------------------------------------------------------

# One read of `live`: one moment, since each operation is one block of it.
COUNT_LIVE = (
    "SELECT countIf(kind = 0 OR kind = 3 AND n <= {now}), "
    "countIf(kind = 3 AND n > {now} AND attempts = 0), "
    "countIf(kind = 3 AND n > {now} AND attempts > 0), "
    "countIf(kind = 1), countIf(kind IN (0, 3, 4) AND key != ''), countIf(kind = 4), "
    "countIf(kind = 2), minIf(if(kind = 3, n, at), kind = 0 OR kind = 3 AND n <= {now}), "
    "countIf(kind = 5), maxIf(cursor, kind = 5), maxIf(at, kind = 5) "
    f"FROM {{q}}live FINAL WHERE {_GROUP} AND (kind IN (2, 5) OR seq >= "
    f"(SELECT max(low) FROM {{q}}live FINAL WHERE {_GROUP} AND kind = 5))"
)
COUNT_LOG = "SELECT count() FROM {q}messages WHERE topic = {topic} AND seq > {cursor}"
# Beyond the cursor: the first of a key is a head unless the lane has somebody already.
COUNT_LOG_CLOSELY = """
SELECT countIf(is_head AND due <= {now}), countIf(is_head AND due > {now}), countIf(NOT is_head),
       minIf(greatest(stored, due), is_head AND due <= {now})
FROM (
  SELECT due, stored,
         key = '' OR row_number() OVER (PARTITION BY key ORDER BY seq) = 1
           AND key NOT IN (SELECT lane FROM {q}live FINAL
                           WHERE topic = {topic} AND grp = {group} AND kind = 1) AS is_head
  FROM {q}messages WHERE topic = {topic} AND seq > {cursor})"""

# -- purge -------------------------------------------------------------------------------------

_SYNC = "SETTINGS lightweight_deletes_sync = 2"  # it is done when the statement is

DEAD_GROUPS = "SELECT DISTINCT topic, grp FROM {q}live FINAL WHERE kind = 2 AND n < {before}"
OLD_DEAD = f"SELECT seq FROM {{q}}live FINAL WHERE {_GROUP} AND kind = 2 AND n < {{before}} ORDER BY n, seq LIMIT {{limit}}"  # noqa: E501
# Of a death there is one row and never another version.
FORGET_DEAD = f"DELETE FROM {{q}}live WHERE {_GROUP} AND kind = 2 AND seq IN ({{seqs}}) {_SYNC}"
# Nobody needs it: every group's cursor is past it, no row of any group is about it. A dead-letter
# copy counts as taken once a group started before it.
PURGEABLE = """
SELECT topic, seq FROM {q}messages AS m
LEFT JOIN (SELECT topic, min(cursor) AS cursor, min(start) AS start, 1 AS any
           FROM {q}live FINAL WHERE kind = 5 GROUP BY topic) AS g USING (topic)
WHERE (g.any = 0 OR m.seq <= g.cursor)
  AND greatest(m.stored, m.due)
      < if(m.dead_letter = 1 AND (g.any = 0 OR m.seq <= g.start), {dead_before}, {before})
  AND greatest(m.stored, m.due) < greatest({dead_before}, {before})
  AND m.seq NOT IN (SELECT seq FROM {q}live FINAL WHERE kind IN (0, 1, 2, 3, 4))
ORDER BY greatest(m.stored, m.due), m.seq LIMIT {limit}"""
PURGE = f"DELETE FROM {{q}}messages WHERE topic = {{topic}} AND seq IN ({{seqs}}) {_SYNC}"
# The tombstone of a lease says when its delivery ended. Nothing revives it.
_ENDED = "kind = 4 AND del = 1 AND at > 0 AND at < {before}"
SWEEPABLE = f"SELECT topic, grp FROM {{q}}live WHERE {_ENDED} GROUP BY topic, grp HAVING count() >= {{least}}"  # noqa: E501
_OF_ENDED = f"{_GROUP} AND seq IN (SELECT seq FROM {{q}}live WHERE {_GROUP} AND {_ENDED})"
_SYNC_SET = f"{_SYNC}, allow_nondeterministic_mutations = 1"  # at that age all replicas have all
# A delete reaches one part after the other. So first what tombstones cover, then those, and last
# the ones by which the others are found: at no moment does a row come back under FINAL.
SWEEP = (
    f"DELETE FROM {{q}}live WHERE kind IN (0, 1, 3, 4) AND del = 0 AND {_OF_ENDED} {_SYNC_SET}",
    f"DELETE FROM {{q}}live WHERE (kind IN (0, 1, 3) OR kind = 4 AND at = 0) AND del = 1 AND {_OF_ENDED} {_SYNC_SET}",  # noqa: E501
    f"DELETE FROM {{q}}live WHERE {_GROUP} AND {_ENDED} {_SYNC}",
)


class Statements:
    """Fills in the statements for one set of tables."""

    def __init__(self, tables: ClickHouseTables) -> None:
        self._names = {"q": tables.qualifier, "raw": tables.raw_qualifier}
        self.messages = f"{tables.qualifier}messages"
        self.live = f"{tables.qualifier}live"
        self.fence = f"{tables.qualifier}fence"

    def settled(self, topic: str = "", group: str = "") -> str:
        """Return a query that says 1 once every write under a lock is where all see it.

        That of the publishers, or of a group. Empty: one server has nothing to settle.
        """
        return ""

    def fill(self, template: str, **values: Any) -> str:
        """Write a statement with its values."""
        written = {name: literal(value) for name, value in values.items()}
        return template.format(**self._names, **written)
