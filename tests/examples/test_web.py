"""The Flask and the Django example under a real gunicorn with two workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest
import sqlalchemy as sa

from queue_lib import Delivery, Message, Stats, open_queue
from queue_lib.stores.schema import build_tables
from tests.examples.gunicorn import Gunicorn
from tests.examples.running import SECONDS, copied, run

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@dataclass(frozen=True)
class Site:
    example: str
    application: str
    table: str
    setup: tuple[tuple[str, ...], ...]


FLASK = Site("05_flask", "app:app", "orders", (("-m", "flask", "--app", "app", "init-db"),))
DJANGO = Site(
    "06_django", "wsgi", "shop_order", (("manage.py", "migrate"), ("manage.py", "migrate_queue"))
)


@pytest.fixture(params=[FLASK, DJANGO], ids=["flask", "django"])
def site(request: pytest.FixtureRequest) -> Site:
    chosen: Site = request.param
    return chosen


@pytest.fixture
def folder(site: Site, tmp_path: Path, url: str) -> Path:
    """The example's folder, its tables made."""
    folder = copied(site.example, tmp_path)
    for command in site.setup:
        run(sys.executable, *command, cwd=folder, DATABASE_URL=url)
    return folder


@pytest.fixture(params=["sqlite_url", "postgres_url"], ids=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    chosen: str = request.getfixturevalue(request.param)
    return chosen


@contextmanager
def hearing_of_shipped(url: str) -> Iterator[SimpleQueue[int]]:
    """Consume what the handlers publish, in this process."""
    shipped: SimpleQueue[int] = SimpleQueue()

    def hear(delivery: Delivery) -> None:
        shipped.put(int(delivery.payload))

    with open_queue(url) as queue:
        queue.subscribe("orders.shipped", "test", hear)
        yield shipped


def stats(url: str) -> Stats:
    with open_queue(url) as queue:
        return queue.stats("orders", "shipping")


def add_orders(url: str, table: str, count: int) -> None:
    """Add many orders with their messages at once, faster than they are shipped."""
    engine = sa.create_engine(url)
    with open_queue(engine) as queue, engine.begin() as connection:
        rows = [{"id": number, "item": f"tea {number}"} for number in range(count)]
        insert = sa.insert(sa.table(table, sa.column("id"), sa.column("item")))
        connection.execute(insert, rows)
        messages = [Message("orders", str(row["id"]).encode()) for row in rows]
        queue.publish(*messages, connection=connection)
    engine.dispose()


def spent_attempts(url: str) -> int:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        attempts = build_tables().deliveries.c.attempts
        spent = connection.scalar(sa.select(sa.func.coalesce(sa.func.sum(attempts), 0)))
    engine.dispose()
    return int(spent or 0)


@pytest.mark.parametrize("options", [(), ("--preload",)], ids=["plain", "preload"])
def test_orders_are_shipped_by_the_workers(
    site: Site, folder: Path, url: str, options: tuple[str, ...]
):
    with (
        Gunicorn(site.application, *options, cwd=folder, DATABASE_URL=url) as server,
        hearing_of_shipped(url) as shipped,
    ):
        ids = {server.ask("/orders", {"item": f"tea {n}"})[1]["id"] for n in range(20)}
        assert server.ask("/orders", {"item": "unicorn"})[0] == 409  # rolled back, both of it
        assert {shipped.get(timeout=SECONDS) for _ in ids} == ids
        orders = server.ask("/orders")[1]
        assert {order["id"] for order in orders} == ids
        assert {order["shipped_by"] for order in orders} <= server.workers
        assert server.ask("/health") == (200, {"ok": True, "consuming": ["orders:shipping"]})
        assert server.terminate() == 0
        server.expect("closed its queue, drained: True", 2)
        assert shipped.empty()
    assert stats(url) == Stats()


def test_sigterm_drains_and_the_next_release_goes_on(site: Site, folder: Path, url: str):
    count = 150  # two seconds of work
    with hearing_of_shipped(url) as shipped:
        with Gunicorn(site.application, cwd=folder, DATABASE_URL=url) as server:
            add_orders(url, site.table, count)
            heard = [shipped.get(timeout=SECONDS)]  # so it is in the midst of them
            assert server.terminate() == 0
            server.expect("closed its queue, drained: True", 2)
        left = stats(url)
        assert 0 < left.pending < count
        assert (left.leased, left.dead, spent_attempts(url)) == (0, 0, 0)

        with Gunicorn(site.application, cwd=folder, DATABASE_URL=url) as server:
            heard += [shipped.get(timeout=SECONDS) for _ in range(count - 1)]
            assert server.terminate() == 0
        assert sorted(heard) == list(range(count))
        assert shipped.empty()
    assert stats(url) == Stats()
