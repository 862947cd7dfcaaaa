"""Create, upgrade and drop the tables, and keep a host application's migrations apart from ours.

The scripts live in ``alembic/`` of the source tree; the wheel carries them as
``queue_lib/migrations``, for ``script_location = queue_lib:migrations`` in an application's own
ini file. They keep their revision in a table of their own (``queue_lib_version``), so that the
host's history and ours can share a database.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command, context, op
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from queue_lib.errors import (
    InvalidOptionsError,
    SchemaError,
    StoreError,
    StoreUnavailableError,
    UnsupportedError,
    shown,
)
from queue_lib.locks import DEFAULT_LOCK_TABLE
from queue_lib.stores.clickhouse.schema import COLUMNS as CLICKHOUSE_COLUMNS
from queue_lib.stores.schema import DEFAULT_PREFIX, Tables, build_tables
from queue_lib.urls import missing_file, read_target, read_url

__all__ = [
    "Target",
    "alembic_config",
    "configured_tables",
    "configured_target",
    "current",
    "downgrade",
    "include_name",
    "include_object",
    "parse_url",
    "script_location",
    "upgrade",
]

Target = str | sa.URL | sa.Engine | sa.Connection
"""What to migrate. An engine or a connection is borrowed: never disposed of or closed."""

_one_at_a_time = threading.Lock()  # Alembic keeps the running environment in global variables


def upgrade(
    target: Target,
    *,
    revision: str = "head",
    schema: str | None = None,
    table_prefix: str = DEFAULT_PREFIX,
) -> None:
    """Apply the missing migrations in one transaction: all of them or none.

    Any number of processes may do so at once: they wait for each other, and all but the first
    find nothing left to do. A missing PostgreSQL schema is created. On a connection that is
    already in a transaction, the commit is the caller's.

    Raises:
        InvalidOptionsError: an argument is not valid.
        UnsupportedError: the database or its driver is of a kind that the queue cannot use.
        SchemaError: the database, or `revision`, is of a release that this one does not know.
        StoreError: the database refused; a `StoreUnavailableError` if it could not be reached.
    """
    config = alembic_config(_checked(target), schema=schema, table_prefix=table_prefix)
    _check_revision(revision)
    with _alembic(config):
        command.upgrade(config, revision)


def downgrade(
    target: Target,
    *,
    revision: str,
    schema: str | None = None,
    table_prefix: str = DEFAULT_PREFIX,
) -> None:
    """Take migrations back, down to `revision`; ``"base"`` drops every table **with its rows**.

    A PostgreSQL schema stays, even if `upgrade` made it: it may hold other things. Raises what
    `upgrade` does.
    """
    config = alembic_config(_checked(target), schema=schema, table_prefix=table_prefix)
    _check_revision(revision)
    if (path := _missing_file(config)) is not None:
        raise StoreError(f"{path}: there is no such file")
    with _alembic(config):
        command.downgrade(config, revision)


def current(
    target: Target, *, schema: str | None = None, table_prefix: str = DEFAULT_PREFIX
) -> str | None:
    """Return the revision that the database is at, or `None` if it has no tables of ours.

    Raises what `upgrade` does.
    """
    config = alembic_config(_checked(target), schema=schema, table_prefix=table_prefix)
    if _missing_file(config) is not None:
        return None
    found: list[str] = []

    def read(revisions: Any, _context: Any) -> list[Any]:
        found.extend(revisions)
        return []

    script = ScriptDirectory.from_config(config)
    with _alembic(config), EnvironmentContext(config, script, fn=read, dont_mutate=True):
        script.run_env()
    return found[0] if found else None


def alembic_config(
    target: Target | None = None,
    *,
    schema: str | None = None,
    table_prefix: str = DEFAULT_PREFIX,
) -> Config:
    """Build the configuration for any other Alembic command; it needs no ini file.

    Raises:
        InvalidOptionsError: an argument is not valid.
        UnsupportedError: the database or its driver is of a kind that the queue cannot use.
    """
    tables = build_tables(table_prefix, schema)
    config = Config()
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    config.attributes.update(table_prefix=tables.prefix, schema=tables.schema)
    if target is not None:
        config.attributes["target"] = _checked(target)
    return config


def parse_url(text: str) -> sa.URL:
    """Read a database URL.

    Raises:
        InvalidOptionsError: it cannot be read. The message holds no part of it.
        UnsupportedError: the database or its driver is of a kind that the queue cannot use.
    """
    return read_url("target", text)


def script_location() -> Path:
    """Find the migration scripts: in the installed package, else in the source tree."""
    here = Path(__file__).resolve().parent
    packaged = here / "migrations"
    return packaged if packaged.is_dir() else here.parent / "alembic"


def configured_tables(config: Config) -> Tables:
    """Return the tables that a run of Alembic is about: for `env.py` and the revisions.

    Prefix and schema come from the first that is given of: `alembic_config`, ``-x prefix=…`` and
    ``-x schema=…``, the variables ``QUEUE_LIB_TABLE_PREFIX`` and ``QUEUE_LIB_SCHEMA``.
    """
    prefix = _setting(config, "table_prefix", "prefix", "QUEUE_LIB_TABLE_PREFIX")
    schema = _setting(config, "schema", "schema", "QUEUE_LIB_SCHEMA")
    return build_tables(prefix or DEFAULT_PREFIX, schema or None)


def configured_target(config: Config) -> sa.URL | sa.Engine | sa.Connection:
    """Return the database that a run of Alembic is about: for `env.py`.

    Raises:
        CommandError: none was named. There is no default: an in-memory one would report success.
    """
    given: Target | None = (
        config.attributes.get("connection")
        or _setting(config, "target", "url", "QUEUE_LIB_DATABASE_URL")
        or config.get_main_option("sqlalchemy.url")
    )
    if not given:
        raise CommandError("no database: pass -x url=… or set QUEUE_LIB_DATABASE_URL")
    return _checked(given)


def include_name(
    name: str | None,
    type_: str,
    parent_names: Mapping[Any, str | None],
    *,
    table_prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
    lock_table: str | None = DEFAULT_LOCK_TABLE,
) -> bool:
    """Keep our tables out of a host application's autogenerate: pass it to `context.configure`.

    For another prefix or schema wrap it in `functools.partial`. `lock_table`: that of your locker,
    in whatever schema; `None` if your own migrations have it. Every other name is included.
    """
    if type_ != "table":
        return True
    ours = parent_names.get("schema_name") == schema and _is_ours(name, table_prefix, schema)
    return not (ours or name == lock_table)


def include_object(
    object_: Any,
    name: str | None,
    type_: str,
    reflected: bool,
    compare_to: Any,
    *,
    table_prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
    lock_table: str | None = DEFAULT_LOCK_TABLE,
) -> bool:
    """Do what `include_name` does, for hosts that filter by object: it sees only the database's."""
    if type_ != "table" or not reflected or compare_to is not None:
        return True
    ours = object_.schema == schema and _is_ours(name, table_prefix, schema)
    return not (ours or name == lock_table)


def _checked(target: Target) -> sa.URL | sa.Engine | sa.Connection:
    # A connection may be an asynchronous one's, inside `AsyncConnection.run_sync`.
    return target if isinstance(target, sa.Connection) else read_target("target", target)


def _check_revision(revision: object) -> None:
    if not isinstance(revision, str):
        raise InvalidOptionsError(f"revision {shown(revision)}: must be a string")


def _missing_file(config: Config) -> str | None:
    target = config.attributes["target"]
    return missing_file(target) if isinstance(target, sa.URL) else None


@contextmanager
def _alembic(config: Config) -> Iterator[None]:
    """Run Alembic alone, also inside a host's own run of it, and with our errors."""
    with _one_at_a_time:
        # A revision of the host may call `upgrade(op.get_bind())`: its own globals must be back
        # afterwards.
        outer = [getattr(module, "_proxy", None) for module in (context, op)]
        try:
            yield
        except CommandError as error:
            raise SchemaError(str(error)) from error
        except ImportError as error:
            raise UnsupportedError(f"target: its driver is missing: {error}") from error
        except Exception as error:
            ours = _translated(error, config.attributes["target"])
            if ours is None:
                raise
            raise ours from error
        finally:
            for proxy in outer:
                if proxy is not None:
                    proxy._install_proxy()


def _translated(error: Exception, target: sa.URL | sa.Engine | sa.Connection) -> StoreError | None:
    """Say what an error means, as the store of that database does; `None`: it is no database's."""
    url = target if isinstance(target, sa.URL) else target.engine.url
    name = url.get_backend_name()
    if name == "clickhouse":
        from queue_lib.stores.clickhouse.errors import DRIVER_ERRORS
        from queue_lib.stores.clickhouse.errors import translate as translate_clickhouse

        return translate_clickhouse(error) if isinstance(error, DRIVER_ERRORS) else None
    if not isinstance(error, sa.exc.DBAPIError):
        return None
    from queue_lib.stores.sql.errors import translate

    if name == "postgresql":
        from queue_lib.stores.sql.postgres.database import classify

        return translate(error, classify(error))
    from queue_lib.stores.sql.sqlite.engines import explained, is_busy

    if is_busy(error):
        return translate(error, StoreUnavailableError)
    return explained(error, url) or translate(error, StoreError)


def _is_ours(name: str | None, prefix: str, schema: str | None) -> bool:
    tables = build_tables(prefix, schema)
    ours = {table.name for table in tables.metadata.tables.values()}
    ours.update(f"{prefix}{table}" for table in CLICKHOUSE_COLUMNS)
    return name == tables.version_table or name in ours


def _setting(config: Config, attribute: str, argument: str, variable: str) -> Any:
    if attribute in config.attributes:
        return config.attributes[attribute]
    arguments = getattr(config.cmd_opts, "x", None) or []
    given = dict(item.partition("=")[::2] for item in arguments)
    return given.get(argument) or os.environ.get(variable)
