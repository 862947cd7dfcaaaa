"""K. Publishing in a transaction of the application, whose process dies, or which is odd."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa

from queue_lib import Message, Stats, migrate, open_queue
from queue_lib.engine.queue import StoreQueue
from tests.engine.harness import DEADLINE, GROUP, TOPIC, Backend, Inbox
from tests.pain import child
from tests.servers import PostgresServer


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.requires("transactional")
@pytest.mark.parametrize("commits", ["commits", "does not"])
def test_a_process_that_dies_leaves_both_the_order_and_its_message_or_neither(
    backend: Backend, queue: StoreQueue, commits: str
) -> None:
    """P86, P87. There is no moment between the two at which one of them is there."""
    queue.subscribe(TOPIC, GROUP, Inbox()).close()
    engine = sa.create_engine(backend.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("create table shop (number integer)")
    with child.start("die_in_a_transaction", backend, commits) as victim:
        _, errors = victim.communicate(timeout=DEADLINE)
    assert (victim.returncode, errors) == (9, "")
    with engine.connect() as connection:
        orders = connection.exec_driver_sql("select count(*) from shop").scalar_one()
    engine.dispose()
    assert orders == queue.stats(TOPIC, GROUP).pending == (commits == "commits")


@pytest.fixture
def two_phase(crashable_postgres: PostgresServer) -> Iterator[sa.Engine]:
    """An engine on a database that takes prepared transactions."""
    server = crashable_postgres
    plain = sa.make_url(server.url()).set(drivername="postgresql")
    with psycopg.connect(plain.render_as_string(hide_password=False), autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET max_prepared_transactions = 5")
    server.restart()
    url = server.url(server.create_database())
    migrate.upgrade(url)
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


@pytest.mark.slow
def test_a_two_phase_transaction_is_refused_and_leaves_nothing(two_phase: sa.Engine) -> None:
    """P87. PostgreSQL prepares no transaction that wakes others."""
    with open_queue(two_phase) as queue:
        queue.subscribe(TOPIC, GROUP, Inbox()).close()
        with two_phase.connect() as connection:
            transaction = connection.begin_twophase()
            queue.publish(Message(TOPIC), connection=connection)
            with pytest.raises(sa.exc.NotSupportedError, match="NOTIFY"):
                transaction.prepare()
            connection.invalidate()  # what SQLAlchemy would roll back is not there
        assert queue.stats(TOPIC, GROUP) == Stats()
