"""Alembic environment of queue_lib: where to migrate, and that only one process does at a time.

The same file serves the source tree (``alembic/``) and the wheel (``queue_lib/migrations/``).
Which database, prefix and schema: see `queue_lib.migrate.configured_target` and
`queue_lib.migrate.configured_tables`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import sqlalchemy as sa
from alembic import context

from queue_lib.errors import UnsupportedError
from queue_lib.migrate import configured_tables, configured_target, include_name
from queue_lib.stores.sql.sqlite.engines import begin_immediate, own_engine

_log = logging.getLogger("queue_lib.migrate")
_tables = configured_tables(context.config)

_LOCK = 0x71756575  # any number will do, as long as every release agrees on it
_PATIENCE = 60.0  # seconds that SQLite waits for the turns of others


def _writes() -> bool:
    """Tell `upgrade`, `downgrade` and `stamp` from the commands that only look."""
    try:
        context.get_revision_argument()
    except KeyError:
        return False
    return True


def _include_name(name: str | None, type_: str, parents: Mapping[Any, str | None]) -> bool:
    """Leave everything but our tables out of autogenerate and `check`."""
    if type_ == "schema":
        return name == _tables.schema
    return type_ != "table" or not include_name(
        name, type_, parents, table_prefix=_tables.prefix, schema=_tables.schema, lock_table=None
    )


def _configure(**where: Any) -> None:
    is_clickhouse = _is_clickhouse(where.get("connection"), where.get("url"))
    metadata = _tables.metadata
    if is_clickhouse:
        from queue_lib.stores.clickhouse import migration

        metadata = migration.table_metadata(_tables.prefix, _tables.schema)
    context.configure(
        target_metadata=metadata,
        version_table=_tables.version_table,
        version_table_schema=_tables.schema,
        include_name=_include_name,
        include_schemas=_tables.schema is not None,
        transactional_ddl=not is_clickhouse,  # SQLite too: all revisions or none
        **where,
    )
    if _tables.schema and context.get_context().dialect.name == "sqlite":
        raise UnsupportedError(f"schema {_tables.schema!r}: SQLite has none; use the table prefix")


def _is_clickhouse(connection: sa.Connection | None, url: sa.URL | None) -> bool:
    """Say whether it is ClickHouse, whose drivers are imported only then."""
    name = connection.dialect.name if connection else url and url.get_backend_name()
    return name == "clickhouse"


def _run(connection: sa.Connection | None) -> None:
    """Run the command in one transaction; without a connection, print its SQL."""
    with _alone_on_clickhouse(connection), context.begin_transaction():
        if _writes():
            _take_turn(connection)
        context.run_migrations()
        if _writes() and _is_at_base():
            _drop_version_table(connection)


def _drop_version_table(connection: sa.Connection | None) -> None:
    if connection and _is_clickhouse(connection, None):
        from queue_lib.stores.clickhouse import migration

        tables = migration.tables_of(connection, _tables.prefix, _tables.schema)
        migration.drop_version_table(connection, tables, _tables.version_table)
        return
    version_table = sa.Table(_tables.version_table, sa.MetaData(), schema=_tables.schema)
    context.execute(sa.schema.DropTable(version_table, if_exists=True))


def _alone_on_clickhouse(connection: sa.Connection | None) -> AbstractContextManager[object]:
    if connection is None or not _is_clickhouse(connection, None) or not _writes():
        return nullcontext()
    from queue_lib.stores.clickhouse import migration

    return migration.migrating(connection, _tables.prefix, _tables.schema)


def _is_at_base() -> bool:
    if context.is_offline_mode():
        return context.get_revision_argument() is None
    return not context.get_context().get_current_heads()


def _take_turn(connection: sa.Connection | None) -> None:
    """Wait for other migrators, before the version table is read.

    Else two processes that start together both find an empty database, and one of them fails.
    """
    driver: Any = connection and connection.connection.driver_connection
    if getattr(driver, "autocommit", False) is True:
        raise UnsupportedError("the connection is on autocommit: hand over the engine or the URL")
    if context.get_context().dialect.name == "sqlite":
        if connection and not driver.in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        return
    if _is_clickhouse(connection, None):
        return
    context.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    # Looking first: IF NOT EXISTS needs the right to create schemas even where this one exists.
    if _tables.schema and not (connection and sa.inspect(connection).has_schema(_tables.schema)):
        context.execute(sa.schema.CreateSchema(_tables.schema, if_not_exists=True))


@contextmanager
def _connect(target: sa.Engine | sa.URL) -> Iterator[sa.Connection]:
    """Connect so that `_take_turn` works, whatever transactions the host's engine likes."""
    name = (target.url if isinstance(target, sa.Engine) else target).get_backend_name()
    if name == "sqlite":
        engine, borrowed = own_engine(target, _prefer_wal), False
        sa.event.listen(engine, "begin", _begin_sqlite)
    elif name == "postgresql":
        borrowed = isinstance(target, sa.Engine)
        if isinstance(target, sa.URL):  # connected to as the store does, whatever driver it names
            target = sa.create_engine(target.set(drivername="postgresql+psycopg"))
        # A stricter level would read the version from a snapshot older than the wait for the lock.
        engine = target.execution_options(isolation_level="READ COMMITTED")
    else:
        from queue_lib.stores.clickhouse.database import own_engine as own_clickhouse_engine

        engine, borrowed = own_clickhouse_engine(target), False
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        if not borrowed:
            engine.dispose()


def _prefer_wal(driver: Any) -> None:
    """Switch the file to WAL, for good: readers and the writer then do not wait for each other."""
    if _writes():
        try:  # not possible inside a transaction, nor while somebody reads
            driver.execute("PRAGMA journal_mode = wal")
        except driver.OperationalError as error:
            _log.warning("the database stays in its slower journal mode: %s", error)


def _begin_sqlite(connection: sa.Connection) -> None:
    if _writes():
        begin_immediate(connection.exec_driver_sql, _PATIENCE)
    else:
        connection.exec_driver_sql("BEGIN")


def _main() -> None:
    target = configured_target(context.config)
    if context.is_offline_mode():
        url = target if isinstance(target, sa.URL) else target.engine.url
        if _is_clickhouse(None, url):
            raise UnsupportedError("ClickHouse: migrations need a connection, not --sql")
        _configure(url=url, literal_binds=True, dialect_opts={"paramstyle": "named"})
        _run(None)
    elif isinstance(target, sa.Connection):
        _go(target)
    else:
        with _connect(target) as own:
            _go(own)


def _go(connection: sa.Connection) -> None:
    if _is_clickhouse(connection, None):
        from queue_lib.stores.clickhouse import migration

        with migration.prepared(connection):
            _configure(connection=connection)
            _run(connection)
    else:
        _configure(connection=connection)
        _run(connection)


_main()
