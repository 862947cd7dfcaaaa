"""Alembic environment of queue_lib: where to migrate, and that only one process does at a time.

The same file serves the source tree (``alembic/``) and the wheel (``queue_lib/migrations/``).
Which database, prefix and schema: see `queue_lib.migrate.configured_target` and
`queue_lib.migrate.configured_tables`.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from alembic import context

from queue_lib.errors import UnsupportedError
from queue_lib.migrate import configured_tables, configured_target, include_name

_log = logging.getLogger("queue_lib.migrate")
_tables = configured_tables(context.config)

_LOCK = 0x71756575  # any number will do, as long as every release agrees on it
_LEGACY_TRANSACTION_CONTROL = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL, from Python 3.12


def _writes() -> bool:
    """Tell `upgrade`, `downgrade` and `stamp` from the commands that only look."""
    try:
        context.get_revision_argument()
    except KeyError:
        return False
    return True


def _include_name(name: str | None, type_: str, parents: Mapping[str, str | None]) -> bool:
    """Leave everything but our tables out of autogenerate and `check`."""
    if type_ == "schema":
        return name == _tables.schema
    return type_ != "table" or not include_name(
        name, type_, parents, table_prefix=_tables.prefix, schema=_tables.schema
    )


def _configure(**where: Any) -> None:
    context.configure(
        target_metadata=_tables.metadata,
        version_table=_tables.version_table,
        version_table_schema=_tables.schema,
        include_name=_include_name,
        include_schemas=_tables.schema is not None,
        transactional_ddl=True,  # SQLite too: all revisions or none
        **where,
    )


def _migrate(connection: sa.Connection) -> None:
    _configure(connection=connection)
    with context.begin_transaction():
        if _writes():
            _take_turn(connection)
        context.run_migrations()
        if _writes() and not context.get_context().get_current_heads():
            version_table = sa.Table(_tables.version_table, sa.MetaData(), schema=_tables.schema)
            version_table.drop(connection, checkfirst=True)  # base: nothing of ours stays


def _take_turn(connection: sa.Connection) -> None:
    """Wait for other migrators, before the version table is read.

    Else two processes that start together both find an empty database, and one of them fails.
    """
    driver: Any = connection.connection.driver_connection
    if getattr(driver, "autocommit", False) is True:
        raise UnsupportedError("the connection is on autocommit: hand over the engine or the URL")
    if connection.dialect.name == "sqlite":
        if not driver.in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        return
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    # Looking first: CREATE SCHEMA IF NOT EXISTS needs the right to create also where one exists.
    if _tables.schema and not sa.inspect(connection).has_schema(_tables.schema):
        connection.execute(sa.schema.CreateSchema(_tables.schema))


@contextmanager
def _connect(target: sa.Engine | sa.URL) -> Iterator[sa.Connection]:
    """Connect so that `_take_turn` works whatever transactions the host's engine likes."""
    engine = target if isinstance(target, sa.Engine) else _engine(target)
    if engine.dialect.name == "sqlite":
        with _sqlite(engine, borrowed=engine is target) as connection:
            yield connection
    else:
        # A stricter level would keep the snapshot from before the wait for the lock.
        isolated = engine.execution_options(isolation_level="READ COMMITTED")
        with isolated.connect() as connection:
            yield connection


def _engine(url: sa.URL) -> sa.Engine:
    if (name := url.get_backend_name()) not in ("sqlite", "postgresql"):
        raise UnsupportedError(f"database {name!r}: the migrations know sqlite and postgresql")
    return sa.create_engine(url, poolclass=sa.NullPool)


@contextmanager
def _sqlite(engine: sa.Engine, *, borrowed: bool) -> Iterator[sa.Connection]:
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("PRAGMA database_list").all()
        if in_memory := not rows[0][2]:
            if not borrowed:
                raise UnsupportedError("an in-memory database ends here: hand over its engine")
            connection.rollback()
            yield connection
    if in_memory:
        return
    own = sa.create_engine(engine.url, pool=engine.pool.recreate())
    sa.event.listen(own, "connect", _on_connect)
    sa.event.listen(own, "begin", _on_begin)
    try:
        with own.connect() as connection:
            yield connection
    finally:
        own.dispose()
