"""A schema with the tables, a host's engine on it, and stores of ours beside it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from queue_lib.stores.schema import Tables, build_tables
from queue_lib.stores.sql.postgres import install_functions
from tests.postgres.lab import Lab
from tests.servers import Postgres


@pytest.fixture(scope="session")
def shared_database(postgres_server: Postgres) -> Iterator[str]:
    """One database for the tests that need no more than a schema: it takes a tenth of the time."""
    name = postgres_server.create_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture
def tables() -> Tables:
    return build_tables("queue_", f"s{uuid.uuid4().hex[:20]}")


@pytest.fixture
def host(shared_database: str, tables: Tables) -> Iterator[sa.Engine]:
    """The host application's engine."""
    engine = sa.create_engine(shared_database)
    create_tables(engine, tables)
    yield engine
    with engine.begin() as connection:
        connection.execute(sa.schema.DropSchema(str(tables.schema), cascade=True))
    engine.dispose()


@pytest.fixture
def lab(host: sa.Engine, tables: Tables) -> Iterator[Lab]:
    lab = Lab(host, tables)
    yield lab
    lab.close()


def create_tables(engine: sa.Engine, tables: Tables) -> None:
    with engine.begin() as connection:
        if tables.schema:
            connection.execute(sa.schema.CreateSchema(tables.schema))
        tables.metadata.create_all(connection)
        install_functions(connection, tables)
