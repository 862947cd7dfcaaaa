"""Build the SQL store that fits an engine or a URL. Drivers are imported only when chosen."""

from __future__ import annotations

import sqlalchemy as sa

from queue_lib.errors import UnsupportedError
from queue_lib.stores.schema import DEFAULT_PREFIX, build_tables
from queue_lib.stores.sql.store import SqlStore, StoreClock

__all__ = ["open_sql_store"]


def open_sql_store(
    target: sa.Engine | sa.URL,
    *,
    schema: str | None = None,
    table_prefix: str = DEFAULT_PREFIX,
    wake: bool = True,
    listen_url: sa.URL | str | None = None,
    clock: StoreClock | None = None,
) -> SqlStore:
    """Open the store for an engine (borrowed, never disposed of) or a URL.

    Connects to nothing yet. `wake`: tell other processes of publishes, and listen to theirs.
    `listen_url`: PostgreSQL only, where to LISTEN when `target` is behind a transaction pooler.
    `clock`: tests only.

    Raises:
        UnsupportedError: the database is none of those that this store knows.
    """
    name = (target.url if isinstance(target, sa.Engine) else target).get_backend_name()
    tables = build_tables(table_prefix, schema)
    if name == "sqlite":
        from queue_lib.stores.sql.sqlite import SqliteDatabase, SqliteStatements

        return SqlStore(
            SqliteDatabase(target, tables, wake=wake), SqliteStatements(tables), clock=clock
        )
    if name == "postgresql":
        from queue_lib.stores.sql.postgres import PostgresDatabase, PostgresStatements

        return SqlStore(
            PostgresDatabase(target, tables, wake=wake, listen_url=listen_url),
            PostgresStatements(tables),
            clock=clock,
        )
    raise UnsupportedError(f"database {name!r}: this store knows sqlite and postgresql")
