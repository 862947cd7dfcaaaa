"""The PostgreSQL half of the SQL store: PL/pgSQL functions, and what calls them.

The operations are in the `.sql` files, each with the interleavings that its statements are
ordered for. Needs psycopg 3.2, also where the host's engine uses another driver.
"""

from __future__ import annotations

from queue_lib.stores.sql.postgres.database import PostgresDatabase
from queue_lib.stores.sql.postgres.functions import (
    drop_functions,
    install_functions,
    render_functions,
)
from queue_lib.stores.sql.postgres.statements import PostgresStatements

__all__ = [
    "PostgresDatabase",
    "PostgresStatements",
    "drop_functions",
    "install_functions",
    "render_functions",
]
