"""Everything that a database holds, as text: to compare two ways of getting there."""

from __future__ import annotations

import sqlalchemy as sa

from queue_lib.stores.schema import Tables
from queue_lib.stores.sql.postgres.functions import drop_functions, install_functions

__all__ = ["contents", "expected_contents", "relations"]

_SQLITE = "SELECT type || ' ' || name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"

_POSTGRES = """
SELECT 'column ' || c.relname || '.' || a.attname || ' ' || a.attnum,
       concat_ws(' ', format_type(a.atttypid, a.atttypmod), 'collate ' || l.collname,
                 CASE WHEN a.attnotnull THEN 'not null' END, a.attidentity,
                 'default ' || pg_get_expr(d.adbin, d.adrelid))
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
  LEFT JOIN pg_collation l ON l.oid = a.attcollation
  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
 WHERE c.relkind = 'r' AND c.relnamespace = CAST(CAST(:schema AS text) AS regnamespace)
UNION ALL
SELECT 'table ' || relname, array_to_string(reloptions, ' ')
  FROM pg_class WHERE relkind = 'r' AND relnamespace = CAST(CAST(:schema AS text) AS regnamespace)
UNION ALL
SELECT 'index ' || indexname, indexdef FROM pg_indexes WHERE schemaname = CAST(:schema AS text)
UNION ALL
SELECT 'constraint ' || conname, pg_get_constraintdef(oid)
  FROM pg_constraint WHERE connamespace = CAST(CAST(:schema AS text) AS regnamespace)
UNION ALL
SELECT 'sequence ' || sequencename, data_type || ' ' || increment_by
  FROM pg_sequences WHERE schemaname = CAST(:schema AS text)
UNION ALL
SELECT 'function ' || proname, pg_get_functiondef(oid)
  FROM pg_proc WHERE pronamespace = CAST(CAST(:schema AS text) AS regnamespace)
"""

_SQLITE_NAMES = "SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"

_POSTGRES_NAMES = """
SELECT relname FROM pg_class WHERE relnamespace = CAST(CAST(:schema AS text) AS regnamespace)
UNION ALL
SELECT proname FROM pg_proc WHERE pronamespace = CAST(CAST(:schema AS text) AS regnamespace)
"""


def contents(connection: sa.Connection, tables: Tables) -> dict[str, str]:
    """Describe everything of one schema but for the version table."""
    if connection.dialect.name == "sqlite":
        rows = connection.execute(sa.text(_SQLITE))
    else:
        rows = connection.execute(sa.text(_POSTGRES), {"schema": tables.schema or "public"})
    return {
        name: " ".join((definition or "").split())
        for name, definition in rows
        if tables.version_table not in name
    }


def expected_contents(connection: sa.Connection, tables: Tables) -> dict[str, str]:
    """Describe what the stores' own description of the tables makes, and remove that again."""
    is_postgresql = connection.dialect.name == "postgresql"
    if tables.schema:
        connection.execute(sa.schema.CreateSchema(tables.schema, if_not_exists=True))
    tables.metadata.create_all(connection)
    if is_postgresql:
        install_functions(connection, tables)
    found = contents(connection, tables)
    if is_postgresql:
        drop_functions(connection, tables)
    tables.metadata.drop_all(connection)
    return found


def relations(connection: sa.Connection, schema: str | None = None) -> set[str]:
    """Name every table, index, sequence and function."""
    if connection.dialect.name == "sqlite":
        query, parameters = sa.text(_SQLITE_NAMES), {}
    else:
        query, parameters = sa.text(_POSTGRES_NAMES), {"schema": schema or "public"}
    return set(connection.execute(query, parameters).scalars())
