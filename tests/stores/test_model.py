"""Every store agrees with the reference model, over arbitrary histories."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from queue_lib.stores.memory import MemoryStore
from queue_lib.stores.sql.open import open_sql_store
from queue_lib.testing.machine import check_against_model


def test_memory_agrees_with_the_model() -> None:
    check_against_model(MemoryStore)


def test_sqlite_agrees_with_the_model(new_sqlite_url: Callable[[], sa.URL]) -> None:
    check_against_model(lambda clock: open_sql_store(new_sqlite_url(), clock=clock))


def test_postgres_agrees_with_the_model(new_postgres_url: Callable[[], sa.URL]) -> None:
    check_against_model(lambda clock: open_sql_store(new_postgres_url(), clock=clock))
