"""What `shop/queueing.py` of the Django example promises, tried inside a real Django."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.examples.running import copied, run
from tests.servers import Postgres

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PRELUDE = """
import uuid
import django
django.setup()
from django.db import connection, transaction
from queue_lib import Delivery, Message
from shop.models import Order
from shop.queueing import handler, publish, queue

Order.objects.all().delete()
TOPIC = uuid.uuid4().hex
queue.subscribe(TOPIC, "g", print).close()  # registers the group

def pending():
    return queue.stats(TOPIC, "g").pending
"""


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/shop.db"
    else:
        server: Postgres = request.getfixturevalue("postgres_server")
        name = server.create_database()
        yield server.url(name)
        server.drop_database(name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, url: str) -> Path:
    """The example's folder, its tables made."""
    folder = copied("06_django", tmp_path_factory.mktemp("django"))
    for command in ("migrate", "migrate_queue"):
        run(sys.executable, "manage.py", command, cwd=folder, DATABASE_URL=url)
    return folder


def inside(folder: Path, url: str, script: str) -> None:
    code = f"{PRELUDE}\n{dedent(script)}\nqueue.close()"
    run(
        sys.executable, "-c", code,
        cwd=folder, DATABASE_URL=url, DJANGO_SETTINGS_MODULE="settings",
    )  # fmt: skip


def test_publishing_follows_the_transaction_and_its_savepoints(folder: Path, url: str):
    inside(
        folder,
        url,
        """
        with transaction.atomic():
            Order.objects.create(item="one")
            publish(Message(TOPIC, b"kept"), Message(TOPIC, b"kept, too"))
            try:
                with transaction.atomic():
                    publish(Message(TOPIC, b"gone"))
                    raise LookupError
            except LookupError:
                pass
            Order.objects.create(item="two")
            assert pending() == 0, "visible before the commit"
        assert pending() == 2
        assert Order.objects.count() == 2

        try:
            with transaction.atomic():
                publish(Message(TOPIC, b"gone"))
                Order.objects.create(item="gone")
                raise LookupError
        except LookupError:
            pass
        assert pending() == 2
        assert Order.objects.count() == 2
        """,
    )


def test_publishing_outside_of_a_transaction_is_refused(folder: Path, url: str):
    inside(
        folder,
        url,
        """
        try:
            publish(Message(TOPIC))
        except transaction.TransactionManagementError:
            pass
        else:
            raise AssertionError("was not refused")
        assert pending() == 0
        Order.objects.create(item="on autocommit")
        assert not connection.in_atomic_block
        """,
    )


def test_the_connection_stays_as_django_made_it(folder: Path, url: str):
    inside(
        folder,
        url,
        """
        Order.objects.create(item="Tea")
        driver = connection.connection
        handlers = len(getattr(driver, "_notice_handlers", ()))
        for _ in range(3):
            with transaction.atomic():
                publish(Message(TOPIC, key="k"))
        assert connection.connection is driver
        assert len(getattr(driver, "_notice_handlers", ())) == handlers
        assert Order.objects.filter(item__iregex="^te").exists()
        Order.objects.all().delete()
        assert pending() == 3
        """,
    )


def test_a_refused_message_leaves_the_transaction_usable(folder: Path, url: str):
    inside(
        folder,
        url,
        """
        from queue_lib import InvalidNameError

        with transaction.atomic():
            try:
                publish(Message("no such name!"))
            except InvalidNameError:
                pass
            Order.objects.create(item="tea")
            publish(Message(TOPIC))
        assert (Order.objects.count(), pending()) == (1, 1)
        """,
    )


def test_a_handler_gets_over_a_connection_that_died(folder: Path, url: str):
    if url.startswith("sqlite"):
        pytest.skip("there is no server that could close it")
    inside(
        folder,
        url,
        """
        connection.settings_dict["CONN_MAX_AGE"] = None  # connections are kept

        @handler
        def count(delivery):
            return Order.objects.count()

        count(Delivery(TOPIC))
        assert connection.connection is not None
        connection.connection.close()  # behind Django's back, as a server does it
        try:
            count(Delivery(TOPIC))
        except Exception:
            pass
        else:
            raise AssertionError("the connection did not die")
        count(Delivery(TOPIC))
        """,
    )
