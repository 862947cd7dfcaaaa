"""The SQLite half of the SQL store: `statements.sql`, and the connections that run it."""

from __future__ import annotations

from queue_lib.stores.sql.sqlite.database import SqliteDatabase
from queue_lib.stores.sql.sqlite.engines import prepare_sqlite_engine
from queue_lib.stores.sql.sqlite.statements import SqliteStatements

__all__ = ["SqliteDatabase", "SqliteStatements", "prepare_sqlite_engine"]
