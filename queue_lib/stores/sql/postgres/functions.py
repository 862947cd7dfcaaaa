"""Install the functions of the PostgreSQL store: for the migrations, and for tests."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from queue_lib.errors import UnsupportedError
from queue_lib.stores.schema import Tables
from queue_lib.stores.sql import sqlfile

__all__ = ["FUNCTIONS", "drop_functions", "install_functions", "render_functions"]

_FILES = ("publish_v1.sql", "settle_v1.sql", "claim_v1.sql", "upkeep_v1.sql")
_TEXTS = {name: text for file in _FILES for name, text in sqlfile.load(__package__, file).items()}

FUNCTIONS = tuple(_TEXTS)
"""The names of all functions, without the prefix."""


def install_functions(connection: sa.Connection, tables: Tables) -> None:
    """Create or replace the functions, in the schema of the tables.

    Raises:
        UnsupportedError: the tables have no schema of their own, and the connection has none.
    """
    schema = tables.schema or connection.scalar(sa.select(sa.func.current_schema()))
    if schema is None:
        raise UnsupportedError("the search path names no schema: pass one as `schema`")
    for text in render_functions(tables, schema):
        _execute(connection, text)


def drop_functions(connection: sa.Connection, tables: Tables) -> None:
    """Drop the functions that exist."""
    for name in reversed(FUNCTIONS):
        _execute(connection, tables.qualify(f"DROP FUNCTION IF EXISTS {{q}}{name}"))


def render_functions(tables: Tables, schema: str) -> Iterator[str]:
    """Return the statements that create the functions.

    `schema` is where the tables are: inside a function every name is qualified, also where the
    store itself finds its tables by the search path.
    """
    prefix = '"{}".{}'.format(schema.replace('"', '""'), tables.prefix)
    quoted = prefix.replace("'", "''")
    for text in _TEXTS.values():
        yield text.replace("'{q}", f"'{quoted}").replace("{q}", prefix)


def _execute(connection: sa.Connection, text: str) -> None:
    # no_parameters: the driver must not look for placeholders in the text.
    connection.exec_driver_sql(text, execution_options={"no_parameters": True})
