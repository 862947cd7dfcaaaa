"""The tables of the SQL stores, in a `MetaData` of their own.

A host application's metadata never sees them, and they never see the host's. The prefix and the
schema are the caller's choice; the same tables serve SQLite and PostgreSQL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from queue_lib.errors import InvalidOptionsError, shown

__all__ = [
    "DEAD",
    "DEFAULT_PREFIX",
    "LEASED",
    "OWING_DEAD",
    "OWING_DONE",
    "READY",
    "TIMER",
    "WAITING",
    "Tables",
    "build_tables",
]

DEFAULT_PREFIX = "queue_"

# States of a delivery row. "Due" is a state and not a filter: a claim reads the first rows of one
# small index, however many rows are scheduled, waiting or leased. A completed delivery has no row.
READY = 0  # may be claimed now; `at` = since when
TIMER = 1  # scheduled or backing off; `at` = when it becomes due
WAITING = 2  # behind an earlier delivery of its key; `at` = its own schedule, 0 if it has none
LEASED = 3  # claimed under `token`; `at` = the end of the lease
DEAD = 4  # dead-lettered; `at` = when
# The head of a lane is done, but a publisher's open transaction kept the next one from being
# promoted (PostgreSQL only): whoever claims next does that. Nobody waits for anybody.
OWING_DONE = 5
OWING_DEAD = 6

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,30}", re.ASCII)

_Key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # SQLite: only INTEGER is the rowid
_Text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")  # byte for byte
_Token = sa.Text().with_variant(postgresql.UUID(as_uuid=False), "postgresql")

# A queue's tables turn over completely: vacuum by count, not by a share of the table, and without
# pauses, or dead rows pile up in front of the claim. (SQLAlchemy 2.0 knows `postgresql_with` for
# indexes only, hence a statement of its own.)
_VACUUM = sa.DDL(  # type: ignore[no-untyped-call]
    "ALTER TABLE %(fullname)s SET (autovacuum_vacuum_scale_factor = 0, "
    "autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0)"
).execute_if(dialect="postgresql")


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one queue in one database."""

    prefix: str
    schema: str | None
    metadata: sa.MetaData
    topics: sa.Table
    groups: sa.Table
    messages: sa.Table
    deliveries: sa.Table
    message_seq: sa.Sequence
    """Numbers messages on PostgreSQL; SQLite uses the rowid."""

    @property
    def version_table(self) -> str:
        """Where Alembic keeps the revision of these tables: `queue_lib_version` by default."""
        return f"{self.prefix}lib_version"

    def qualify(self, text: str) -> str:
        """Put the qualified prefix in place of each ``{q}`` of an SQL text."""
        return text.replace("{q}", f'"{self.schema}".{self.prefix}' if self.schema else self.prefix)


def build_tables(prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> Tables:
    """Describe the tables for a prefix and a schema; equal arguments give the same object.

    Raises:
        InvalidOptionsError: not a plain lower-case identifier of at most 31 characters.
    """
    _check_identifier("table_prefix", prefix)
    if schema is not None:
        _check_identifier("schema", schema)
    return _build_tables(prefix, schema)


def _check_identifier(field: str, value: object) -> None:
    if not isinstance(value, str) or _IDENTIFIER.fullmatch(value) is None:
        raise InvalidOptionsError(
            f"{field} {shown(value)}: must be 1 to 31 characters of [a-z0-9_], no digit first"
        )


@lru_cache(maxsize=64)
def _build_tables(prefix: str, schema: str | None) -> Tables:
    metadata = sa.MetaData(schema=schema)
    message_seq = sa.Sequence(f"{prefix}message_seq", data_type=sa.BigInteger, metadata=metadata)
    topics = sa.Table(
        f"{prefix}topics",
        metadata,
        sa.Column("id", sa.Integer, sa.Identity(always=True), primary_key=True),
        sa.Column("name", _Text, nullable=False),
        sa.UniqueConstraint("name", name=f"{prefix}topics_name"),
        sqlite_autoincrement=True,  # an id is never used twice
    )
    groups = sa.Table(
        f"{prefix}groups",
        metadata,
        sa.Column("id", sa.Integer, sa.Identity(always=True), primary_key=True),
        sa.Column("topic_id", sa.Integer, nullable=False),
        sa.Column("name", _Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("topic_id", "name", name=f"{prefix}groups_name"),
        sqlite_autoincrement=True,
    )
    messages = sa.Table(
        f"{prefix}messages",
        metadata,
        sa.Column("seq", _Key, primary_key=True, autoincrement=False),
        sa.Column("id", _Text, nullable=False),
        sa.Column("topic_id", sa.Integer, nullable=False),
        sa.Column("key", _Text),  # null: no order
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("deliver_at", sa.BigInteger, nullable=False),  # 0: at once
        sa.Column("published_at", sa.BigInteger, nullable=False),
        sa.Column("stored_at", sa.BigInteger, nullable=False),
        sa.Column("untaken", sa.Boolean(create_constraint=False), nullable=False),
        # Last: SQLite walks the pages of what comes before a column, a megabyte of payload too.
        sa.Column("headers", sa.Text),  # JSON, ASCII only; null: none
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("id", name=f"{prefix}messages_id"),
    )
    deliveries = sa.Table(
        f"{prefix}deliveries",
        metadata,
        sa.Column("group_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("seq", _Key, primary_key=True, autoincrement=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("token", _Token),
        sa.Column("key", _Text),
        sa.Column("error", sa.Text),
        sqlite_with_rowid=False,
    )

    for table in (messages, deliveries):
        sa.event.listen(table, "after_create", _VACUUM)

    def partial(name: str, *columns: str, where: str, unique: bool = False) -> None:
        condition = sa.text(where)
        sa.Index(
            f"{prefix}{name}",
            *(deliveries.c[column] for column in columns),
            unique=unique,
            postgresql_where=condition,
            sqlite_where=condition,
        )

    partial("ready", "group_id", "priority", "seq", where="state = 0")
    partial("timer", "group_id", "at", where="state = 1")
    partial("waiting", "group_id", "key", "seq", where="state = 2")
    partial("leased", "group_id", "at", where="state = 3")
    partial("dead", "group_id", "at", where="state = 4")
    partial("owing", "group_id", "seq", where="state in (5, 6)")
    # At most one live head for each lane: a bug in a statement becomes an error, never two heads.
    partial(
        "head",
        "group_id",
        "key",
        where="key is not null and state in (0, 1, 3, 5, 6)",
        unique=True,
    )
    return Tables(prefix, schema, metadata, topics, groups, messages, deliveries, message_seq)
