"""A database with the tables, a host's engine on it, and stores of ours beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from queue_lib.stores.schema import Tables, build_tables
from queue_lib.stores.sql.postgres import install_functions
from tests.postgres.lab import Lab


@pytest.fixture
def tables() -> Tables:
    return build_tables()


@pytest.fixture
def host(postgres_url: str, tables: Tables) -> Iterator[sa.Engine]:
    """The host application's engine."""
    engine = sa.create_engine(postgres_url)
    with engine.begin() as connection:
        tables.metadata.create_all(connection)
        install_functions(connection, tables)
    yield engine
    engine.dispose()


@pytest.fixture
def lab(host: sa.Engine, tables: Tables) -> Iterator[Lab]:
    lab = Lab(host, tables)
    yield lab
    lab.close()
