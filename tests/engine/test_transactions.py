"""Publishing in the caller's transaction: its commit decides, and wakes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from queue_lib import Message, PayloadTooLargeError, Stats, StoreUnavailableError, UnsupportedError
from queue_lib.engine.queue import StoreQueue
from queue_lib.testing.faults import FaultyStore
from tests.engine.conftest import OpenQueue
from tests.engine.harness import (
    FAST,
    GROUP,
    MINUTE,
    TOPIC,
    Backend,
    Diary,
    Inbox,
    eventually,
    messages,
)

transactional = pytest.mark.requires("transactional")


@pytest.fixture
def engine(backend: Backend) -> Iterator[sa.Engine]:
    """An engine of the application."""
    engine = sa.create_engine(backend.url)
    yield engine
    engine.dispose()


@pytest.fixture
def inbox(queue: StoreQueue) -> Inbox:
    """What comes to a subscriber that never polls."""
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, inbox, **MINUTE)
    return inbox


@transactional
def test_the_commit_shows_the_message_and_wakes(
    queue: StoreQueue, engine: sa.Engine, inbox: Inbox
) -> None:
    with engine.begin() as connection:
        message = Message(TOPIC)
        queue.publish(message, connection=connection)
        assert message.id
        assert queue.stats(TOPIC, GROUP) == Stats()
    inbox.wait()
    assert inbox.ids == [message.id]


@transactional
def test_a_session_does_as_well_as_a_connection(
    queue: StoreQueue, engine: sa.Engine, inbox: Inbox
) -> None:
    with Session(engine) as session:
        queue.publish(*messages(3), connection=session)
        assert queue.stats(TOPIC, GROUP) == Stats()
        session.commit()
    inbox.wait(3)


@transactional
def test_the_rollback_takes_the_message_back(
    queue: StoreQueue, engine: sa.Engine, inbox: Inbox
) -> None:
    with engine.connect() as connection:
        queue.publish(Message(TOPIC, id="gone"), connection=connection)
        connection.rollback()
    with Session(engine) as session:
        queue.publish(Message(TOPIC, id="gone as well"), connection=session)
        session.rollback()
    queue.publish(Message(TOPIC, id="stays"))
    inbox.wait()
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    assert inbox.ids == ["stays"]


@transactional
def test_so_does_the_rollback_of_a_savepoint(
    queue: StoreQueue, engine: sa.Engine, inbox: Inbox
) -> None:
    with engine.begin() as connection:
        queue.publish(Message(TOPIC, id="before"), connection=connection)
        savepoint = connection.begin_nested()
        queue.publish(Message(TOPIC, id="gone"), connection=connection)
        savepoint.rollback()
        with connection.begin_nested():
            queue.publish(Message(TOPIC, id="after"), connection=connection)
    inbox.wait(2)
    eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    assert sorted(inbox.ids) == ["after", "before"]


@transactional
def test_the_transaction_stays_the_caller_s(queue: StoreQueue, engine: sa.Engine) -> None:
    with engine.connect() as connection:
        connection.execute(sa.text("create table mine (x integer)"))
        connection.commit()
        with connection.begin() as transaction:
            connection.execute(sa.text("insert into mine values (1)"))
            queue.publish(Message(TOPIC), connection=connection)
            assert transaction.is_active
            transaction.rollback()
        assert connection.scalar(sa.text("select count(*) from mine")) == 0


@transactional
def test_a_refused_message_leaves_the_transaction_usable(
    queue: StoreQueue, engine: sa.Engine, inbox: Inbox
) -> None:
    with engine.begin() as connection:
        with pytest.raises(PayloadTooLargeError):
            queue.publish(
                Message(TOPIC), Message(TOPIC, bytes((1 << 20) + 1)), connection=connection
            )
        queue.publish(Message(TOPIC, id="fine"), connection=connection)
    inbox.wait()
    assert inbox.ids == ["fine"]


@transactional
def test_nothing_is_tried_again_in_a_transaction_of_the_caller(
    backend: Backend, open_queue: OpenQueue, engine: sa.Engine
) -> None:
    faulty = FaultyStore(backend.open())
    diary = Diary(faulty)
    queue = open_queue(diary)
    faulty.fail_on("append_in")
    with engine.begin() as connection, pytest.raises(StoreUnavailableError):
        queue.publish(Message(TOPIC), connection=connection)
    assert len(diary.of("append_in")) == 1


def test_where_there_are_no_transactions_it_is_refused(backend: Backend, queue: StoreQueue) -> None:
    if "transactional" in backend.capabilities:
        pytest.skip("there are")
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, inbox, **FAST)
    message = Message(TOPIC, id="refused")
    with pytest.raises(UnsupportedError):
        queue.publish(message, connection=object())
    queue.publish(Message(TOPIC, id="stored"))
    inbox.wait()
    assert inbox.ids == ["stored"]
