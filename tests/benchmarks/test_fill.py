"""What a site is filled with is what the store would have left there, column by column."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from benchmarks.databases import Site
from benchmarks.databases.postgres import PostgresSite
from benchmarks.databases.sqlite import SqliteSite
from benchmarks.work import GROUP, PAYLOAD, TOPIC, register
from queue_lib import Message, PurgePolicy, Stats
from queue_lib.stores.schema import build_tables

DAY = timedelta(days=1)

Make = Callable[[], Site]


@pytest.fixture(params=["sqlite", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes sites."""
    if request.param == "sqlite":
        return lambda: SqliteSite(tmp_path / f"{uuid4()}.db")
    server = request.getfixturevalue("postgres_server")

    def postgres() -> Site:
        name = server.create_database()
        request.addfinalizer(lambda: server.drop_database(name))
        return PostgresSite(server.url(name))

    return postgres


def by_the_store(site: Site, count: int, keys: int, due_in: timedelta) -> None:
    due = datetime.now(UTC) + due_in if due_in else None
    with closing(site.store()) as store:
        store.append([
            Message(
                TOPIC, PAYLOAD, f"k{number % keys}" if keys else "", str(uuid4()),
                deliver_at=due, published_at=datetime.now(UTC),
            )
            for number in range(count)
        ])  # fmt: skip


def rows(site: Site) -> list[dict[str, Any]]:
    """Return every row, with what differs from run to run by what it stands for."""
    tables = build_tables()
    engine = sa.create_engine(site.url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        messages, deliveries = (
            [dict(row) for row in connection.execute(table.select().order_by("seq")).mappings()]
            for table in (tables.messages, tables.deliveries)
        )
    instants = {}
    for message in messages:
        stored = message["stored_at"]
        instants[message["seq"]] = {0: 0, stored: "stored", message["deliver_at"]: "due"}
        message["id"] = len(message["id"])
        del message["published_at"]
    for row in messages + deliveries:
        for name in {"at", "stored_at", "deliver_at"} & set(row):
            row[name] = instants[row["seq"]][row[name]]
    deliveries.sort(key=lambda row: (row["group_id"], row["seq"]))
    return messages + deliveries


def by_sql(site: Site, count: int, keys: int, due_in: timedelta) -> None:
    site.fill(count, keys=keys, due_in=due_in)


@pytest.mark.parametrize("due_in", [timedelta(0), DAY], ids=["due", "scheduled"])
@pytest.mark.parametrize("keys", [0, 3])
def test_the_rows_are_those_of_the_store(make: Make, keys: int, due_in: timedelta) -> None:
    found = []
    for fill in (by_sql, by_the_store):
        site = make()
        with closing(site.store()) as store:
            register(store)
            register(store, "another")
        for count in (7, 5):  # the second time there are heads already
            fill(site, count, keys, due_in)
        found.append(rows(site))
    ours, theirs = found
    assert len(theirs) == 12 * 3
    assert ours == theirs


def test_what_is_there_before_the_groups_is_finished(make: Make) -> None:
    site = make()
    site.fill(10, age=2 * DAY)
    with closing(site.store()) as store:
        register(store)
        site.fill(3)
        assert store.stats(TOPIC, GROUP) == Stats(pending=3)
        assert store.purge(PurgePolicy(dead_retention=7 * DAY, acked_retention=DAY), 100) == 10
        assert store.stats(TOPIC, GROUP) == Stats(pending=3)
