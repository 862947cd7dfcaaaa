"""The queue, and the two things that Django needs of it. Copy this file into your project."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import sqlalchemy as sa
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections, transaction

from queue_lib import Delivery, Message, open_queue

# Connects to nothing yet, so it may be made before a server forks its workers. Its own work goes
# through connections of its own, beside Django's.
queue = open_queue(settings.DATABASE_URL)


def publish(*messages: Message, using: str = DEFAULT_DB_ALIAS) -> None:
    """Publish inside the current `atomic` block: visible at its commit, gone at its rollback.

    `using` must be the database that holds the queue. Savepoints count: what an inner `atomic`
    published goes when the inner block is rolled back.
    """
    if not transaction.get_connection(using).in_atomic_block:
        raise transaction.TransactionManagementError(
            "publish inside transaction.atomic(), or use queue.publish to publish at once"
        )
    with _engine(using).connect() as connection:
        queue.publish(*messages, connection=connection)


def handler(function: Callable[[Delivery], object]) -> Callable[[Delivery], None]:
    """Make a handler that uses Django's database.

    Django checks and closes its connections round requests. A handler is none, so this does it
    round each delivery: a connection that died is then replaced, and not used again for ever.
    """

    @wraps(function)
    def handle(delivery: Delivery) -> None:
        close_old_connections()
        try:
            function(delivery)
        finally:
            close_old_connections()

    return handle


class _Lent:
    """Django's driver connection, lent to SQLAlchemy: to write through, and for nothing else.

    SQLAlchemy sets up, rolls back and closes what it takes for a connection of its own.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def _left_to_django(self, *args: Any, **options: Any) -> None:
        pass

    commit = rollback = close = _left_to_django
    create_function = add_notice_handler = _left_to_django


@cache
def _engine(using: str) -> sa.Engine:
    """Make an engine whose connections are the calling thread's connection of Django."""

    def lend() -> Any:
        return _Lent(connections[using].connection)

    if connections[using].vendor == "sqlite":
        return sa.create_engine("sqlite://", creator=lend, poolclass=sa.NullPool)
    return sa.create_engine(
        "postgresql+psycopg://", creator=lend, poolclass=sa.NullPool, use_native_hstore=False
    )
