"""What other processes do in these tests: ``python -m tests.sqlite.child ROLE URL``.

A child writes a line when it has come to its point, and waits for a line to go on.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from queue_lib.message import Message
from queue_lib.stores.base import ClaimRequest
from queue_lib.stores.sql.open import open_sql_store
from tests.sqlite.support import TABLES


def say(text: str) -> None:
    print(text, flush=True)


def listen() -> str:
    return sys.stdin.readline()


def claim(url: sa.URL) -> None:
    """Lease five deliveries for 300 ms and never be heard of again."""
    claims = open_sql_store(url).claim(request(5, seconds=0.3))
    say(" ".join(claim.message.id for claim in claims))
    listen()


def begin(url: sa.URL) -> None:
    """Hold the write lock with something written."""
    with sa.create_engine(url).begin() as connection:
        connection.exec_driver_sql("begin immediate")
        connection.execute(sa.insert(TABLES.topics).values(name="unfinished"))
        say("begun")
        listen()


def publish(url: sa.URL) -> None:
    """Publish one message when told to."""
    store = open_sql_store(url)
    say("ready")
    listen()
    store.append([Message("orders", id="from another process", published_at=datetime.now(UTC))])
    store.close()


def consume(url: sa.URL) -> None:
    """Share a group with others until there is nothing left; say what was acknowledged."""
    store = open_sql_store(url)
    say("ready")
    listen()
    while claims := store.claim(request(7, seconds=60)):
        held = set(store.ack(claims))
        say(" ".join(claim.message.id for claim in claims if claim.delivery_id in held))
    store.close()


def request(limit: int, *, seconds: float) -> ClaimRequest:
    lease = timedelta(seconds=seconds)
    return ClaimRequest("orders", "billing", f"child {os.getpid()}", limit, lease)


if __name__ == "__main__":
    role, url = sys.argv[1:]
    {"claim": claim, "begin": begin, "publish": publish, "consume": consume}[role](sa.make_url(url))
