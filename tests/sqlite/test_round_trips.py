"""How many statements each operation sends: the cost of all of them on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from tests.sqlite.support import NOW, SECOND, Queue, held, message


@contextmanager
def sent() -> Iterator[list[str]]:
    """Collect the first words of all statements; a COMMIT is not among them."""
    words: list[str] = []

    def note(_connection: object, _cursor: object, text: str, *_others: object) -> None:
        words.append(text.split(maxsplit=1)[0].lower())

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield words
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("count", [1, 1000])
def test_a_publish(queue: Queue, count: int):
    rows = [message(f"m{n}", key="k") for n in range(count)]
    with sent() as words:
        queue.append(*rows)
    assert words == ["begin", "select", "select", "insert", "insert"]


def test_a_publish_that_nobody_consumes(queue: Queue):
    queue.append(message("a", topic="unheard"))
    with sent() as words:
        queue.append(message("b", topic="unheard"))
    assert words == ["begin", "select", "select", "insert"]


def test_a_look_for_work(queue: Queue):
    with sent() as words:
        assert queue.database.read(queue.sql.peek, queue.group, NOW) == (False, None)
    assert words == ["select"]


def test_a_claim(queue: Queue):
    queue.append(*(message(f"m{n}") for n in range(9)))
    with sent() as words:
        assert len(queue.claim(4)[0]) == 4
    assert words == ["begin", "select", "update", "select"]
    with sent() as words:
        assert len(queue.claim(9)[0]) == 5
    assert words == ["begin", "select", "update", "select"]
    with sent() as words:
        assert queue.claim(9) == ([], None)
    assert words == ["begin", "select"]


def test_a_claim_with_something_due(queue: Queue):
    queue.append(message("a"), message("b", deliver_at=NOW + 1))
    queue.claim(lease=1)
    queue.now += SECOND
    with sent() as words:
        assert len(queue.claim(9, cap=5)[0]) == 2
    assert words == [
        "begin", "select", "update", "update", "select", "update", "select", "select",
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 300])
def test_a_settlement_and_a_renewal(queue: Queue, count: int):
    queue.append(*(message(f"m{n}", key=f"k{n}") for n in range(count)))
    rows, _ = queue.claim(count)
    with sent() as words:
        queue.database.write(queue.sql.extend, queue.group, held(rows), SECOND, NOW)
    assert words == ["begin", "update"]
    with sent() as words:
        queue.settle(rows)
    assert words == ["begin", "delete", "update"]
