"""How many statements each operation sends: the cost of all of them on SQLite."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from queue_lib.stores.sql.sqlite import SqliteDatabase
from queue_lib.testing.statements import RecordingDatabase
from tests.sqlite.support import NOW, SECOND, Queue, held, message


@pytest.fixture
def recording(database: SqliteDatabase) -> RecordingDatabase:
    return RecordingDatabase(database)


@pytest.fixture
def queue(recording: RecordingDatabase) -> Queue:
    return Queue(cast("SqliteDatabase", recording))


@pytest.fixture
def sent(recording: RecordingDatabase) -> Callable[[], list[str]]:
    """Return the first words of the statements since it was asked last."""

    def first_words() -> list[str]:
        texts, recording.statements = recording.statements, []
        return [text.split(maxsplit=1)[0] for text in texts]

    return first_words


Sent = Callable[[], list[str]]


@pytest.mark.parametrize("count", [1, 1000])
def test_a_publish(queue: Queue, sent: Sent, count: int):
    rows = [message(f"m{n}", key="k") for n in range(count)]
    queue.append(*rows[:1])
    sent()
    queue.append(*rows)
    assert sent() == ["select", "insert", "insert"]


def test_a_publish_that_nobody_consumes(queue: Queue, sent: Sent):
    queue.append(message("a", topic="unheard"))
    sent()
    queue.append(message("b", topic="unheard"))
    assert sent() == ["select", "insert"]


def test_a_look_for_work(queue: Queue, sent: Sent):
    sent()
    assert queue.database.read(queue.sql.peek, [queue.group], NOW) == [(False, None)]
    assert sent() == ["select"]


def test_a_claim(queue: Queue, sent: Sent):
    queue.append(*(message(f"m{n}") for n in range(9)))
    sent()
    assert len(queue.claim(4)[0]) == 4
    assert sent() == ["update", "select"]
    assert len(queue.claim(9)[0]) == 5
    assert sent() == ["update", "select", "select"]
    assert queue.claim(9) == ([], None)
    assert sent() == ["update", "select"]


def test_a_claim_with_something_due(queue: Queue, sent: Sent):
    queue.append(message("a"), message("b", deliver_at=NOW + 1))
    queue.claim(lease=1)
    queue.now += SECOND
    sent()
    assert len(queue.claim(9, cap=5)[0]) == 2
    assert sent() == [
        "select", "update",  # how many may be taken; nothing is, since something has ended
        "select", "update", "select", "update", "update", "select",
    ]  # fmt: skip


def test_a_batch_that_is_done_and_the_next_one(queue: Queue, sent: Sent):
    """Three statements and one commit: below 0.05 statements a message in batches of 64."""
    queue.append(*(message(f"m{n}") for n in range(128)))
    rows, _ = queue.claim(64)
    sent()
    answer = queue.database.write(queue.sql.claim, queue.group, held(rows), 64, SECOND, 0, NOW)
    assert (len(answer.held), len(answer.rows)) == (64, 64)
    assert sent() == ["delete", "update", "select"]


@pytest.mark.parametrize("count", [1, 300])
def test_a_settlement_and_a_renewal(queue: Queue, sent: Sent, count: int):
    queue.append(*(message(f"m{n}", key=f"k{n}") for n in range(count)))
    rows, _ = queue.claim(count)
    sent()
    queue.database.write(queue.sql.extend, queue.group, held(rows), SECOND, NOW)
    assert sent() == ["update"]
    queue.settle(rows)
    assert sent() == ["delete", "update"]
