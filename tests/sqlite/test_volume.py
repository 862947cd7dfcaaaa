"""50,000 rows in one call: no limit of SQLite's is met, and the lanes come out right."""

from __future__ import annotations

import pytest

from tests.sqlite.support import Queue, message

pytestmark = pytest.mark.slow

COUNT = 50_000


def test_many_messages_go_through_in_one_call_each(queue: Queue):
    names = [f"m{number:05}" for number in range(COUNT)]
    queue.append(*(message(name, key=f"k{n // 2}") for n, name in enumerate(names)))
    first, _ = queue.claim(COUNT)
    assert [row.id for row in first] == names[::2]
    assert len(queue.settle(first)) == COUNT // 2
    second, _ = queue.claim(COUNT)
    assert [row.id for row in second] == names[1::2]
    assert len(queue.settle(second, "no")) == COUNT // 2
    queue.now += 10
    write, sql = queue.database.write, queue.sql
    assert write(sql.purge_dead, 5, COUNT, queue.now) == COUNT // 2
    assert write(sql.purge_messages, 5, 5, COUNT, queue.now) == COUNT
