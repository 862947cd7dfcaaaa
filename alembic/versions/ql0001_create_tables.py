"""Create the tables: topics, groups, messages, deliveries.

Frozen: later releases add revisions and leave this one alone, whatever becomes of
`queue_lib.stores.schema`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import postgresql

from queue_lib.migrate import configured_tables
from queue_lib.stores.schema import Tables

revision = "ql0001"
down_revision = None
branch_labels = ("queue_lib",)
depends_on = None

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_CURRENT_SCHEMA = "{current_schema}"
_TOKEN = sa.Text().with_variant(postgresql.UUID(as_uuid=False), "postgresql")


def upgrade() -> None:
    """Create the tables, and on PostgreSQL the functions."""
    tables = configured_tables(context.config)
    if op.get_context().dialect.name == "clickhouse":
        from queue_lib.stores.clickhouse.schema import create_statements_v1

        _run_on_clickhouse(create_statements_v1, tables)
        return
    is_postgresql = op.get_context().dialect.name == "postgresql"
    if is_postgresql:
        op.execute(sa.schema.CreateSequence(_message_sequence(tables)))
    _create_tables(tables.prefix, tables.schema)
    if is_postgresql:
        for name in ("messages", "deliveries"):
            op.execute(
                tables.qualify(
                    f"ALTER TABLE {{q}}{name} SET (autovacuum_vacuum_scale_factor = 0, "
                    "autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0)"
                )
            )
        _install_functions(tables)


def downgrade() -> None:
    """Drop everything, with its rows."""
    tables = configured_tables(context.config)
    if op.get_context().dialect.name == "clickhouse":
        from queue_lib.stores.clickhouse.schema import drop_statements_v1

        _run_on_clickhouse(drop_statements_v1, tables)
        return
    is_postgresql = op.get_context().dialect.name == "postgresql"
    if is_postgresql:
        from queue_lib.stores.sql.postgres.functions import FUNCTIONS

        for name in reversed(FUNCTIONS):
            op.execute(tables.qualify(f"DROP FUNCTION IF EXISTS {{q}}{name}"))
    for name in ("deliveries", "messages", "groups", "topics"):
        op.drop_table(f"{tables.prefix}{name}", schema=tables.schema)
    if is_postgresql:
        op.execute(sa.schema.DropSequence(_message_sequence(tables)))


def _run_on_clickhouse(statements: Callable[[Any], list[str]], tables: Tables) -> None:
    """Run what the store's release of this revision says: other tables, another design."""
    from queue_lib.stores.clickhouse.migration import tables_of

    connection = op.get_bind()
    there = tables_of(connection, tables.prefix, tables.schema)
    for statement in statements(there):
        connection.exec_driver_sql(statement)


def _create_tables(prefix: str, schema: str | None) -> None:
    op.create_table(
        f"{prefix}topics",
        sa.Column("id", sa.Integer(), sa.Identity(always=True), primary_key=True),
        sa.Column("name", _TEXT, nullable=False),
        sa.UniqueConstraint("name", name=f"{prefix}topics_name"),
        schema=schema,
        sqlite_autoincrement=True,
    )
    op.create_table(
        f"{prefix}groups",
        sa.Column("id", sa.Integer(), sa.Identity(always=True), primary_key=True),
        sa.Column("topic_id", sa.Integer(), nullable=False),
        sa.Column("name", _TEXT, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("topic_id", "name", name=f"{prefix}groups_name"),
        schema=schema,
        sqlite_autoincrement=True,
    )
    op.create_table(
        f"{prefix}messages",
        sa.Column("seq", _KEY, primary_key=True, autoincrement=False),
        sa.Column("id", _TEXT, nullable=False),
        sa.Column("topic_id", sa.Integer(), nullable=False),
        sa.Column("key", _TEXT),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("deliver_at", sa.BigInteger(), nullable=False),
        sa.Column("published_at", sa.BigInteger(), nullable=False),
        sa.Column("stored_at", sa.BigInteger(), nullable=False),
        sa.Column("untaken", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("headers", sa.Text()),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.UniqueConstraint("id", name=f"{prefix}messages_id"),
        schema=schema,
    )
    op.create_table(
        f"{prefix}deliveries",
        sa.Column("group_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("seq", _KEY, primary_key=True, autoincrement=False),
        sa.Column("state", sa.SmallInteger(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("token", _TOKEN),
        sa.Column("key", _TEXT),
        sa.Column("error", sa.Text()),
        schema=schema,
        sqlite_with_rowid=False,
    )
    for name, columns, where, unique in (
        ("ready", ["group_id", "priority", "seq"], "state = 0", False),
        ("timer", ["group_id", "at"], "state = 1", False),
        ("waiting", ["group_id", "key", "seq"], "state = 2", False),
        ("leased", ["group_id", "at"], "state = 3", False),
        ("dead", ["group_id", "at"], "state = 4", False),
        ("owing", ["group_id", "seq"], "state in (5, 6)", False),
        ("head", ["group_id", "key"], "key is not null and state in (0, 1, 3, 5, 6)", True),
    ):
        op.create_index(
            f"{prefix}{name}",
            f"{prefix}deliveries",
            columns,
            unique=unique,
            schema=schema,
            postgresql_where=sa.text(where),
            sqlite_where=sa.text(where),
        )


def _message_sequence(tables: Tables) -> sa.Sequence:
    return sa.Sequence(f"{tables.prefix}message_seq", data_type=sa.BigInteger, schema=tables.schema)


def _install_functions(tables: Tables) -> None:
    from queue_lib.stores.sql.postgres.functions import install_functions, render_functions

    if not context.is_offline_mode():
        install_functions(op.get_bind(), tables)
        return
    for text in render_functions(tables, tables.schema or _CURRENT_SCHEMA):
        if tables.schema is None:  # which schema that is, only the session that runs this knows
            text = (
                f"DO $queue_lib$ BEGIN EXECUTE replace($function${text}$function$, "
                f"'{_CURRENT_SCHEMA}', current_schema()); END $queue_lib$"
            )
        op.execute(text.replace(":", r"\:"))  # no bind parameters
