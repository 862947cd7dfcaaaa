"""`TransactionalStore.append_in`: what is published shares the fate of the caller's transaction."""

from __future__ import annotations

from typing import Any

import pytest

from queue_lib.errors import UnsupportedError
from queue_lib.stores.base import Stats, TransactionalStore
from queue_lib.testing.conformance.case import StoreCase, every_test_requires

__all__ = ["TransactionalConformance"]


@every_test_requires("transactional")
class TransactionalConformance(StoreCase):
    """Publishing in the caller's transaction."""

    def publish_in(self, connection: Any, *message_ids: str, **fields: Any) -> None:
        """Append through a caller's connection."""
        assert isinstance(self.store, TransactionalStore)
        self.store.append_in(connection, [self.message(name, **fields) for name in message_ids])

    def test_it_is_visible_at_the_commit(self) -> None:
        self.register()
        with self.connect(self.store) as connection:
            transaction = connection.begin()
            self.publish_in(connection, "a", "b", key="k")
            self.publish_in(connection, "c")
            assert self.stats() == Stats()
            transaction.commit()
        assert self.drain() == ["a", "c", "b"]

    def test_it_is_gone_at_the_rollback(self) -> None:
        self.register()
        with self.connect(self.store) as connection:
            transaction = connection.begin()
            self.publish_in(connection, "a")
            transaction.rollback()
        assert self.stats() == Stats()
        self.publish("a")
        assert self.drain() == ["a"]

    def test_it_is_gone_at_the_rollback_of_a_savepoint(self) -> None:
        self.register()
        with self.connect(self.store) as connection, connection.begin():
            self.publish_in(connection, "before", key="k")
            savepoint = connection.begin_nested()
            self.publish_in(connection, "inside", key="k")
            savepoint.rollback()
            self.publish_in(connection, "after", key="k")
        assert self.drain() == ["before", "after"]

    def test_a_stored_id_is_a_no_op(self) -> None:
        self.register()
        self.publish("a", payload=b"first")
        with self.connect(self.store) as connection, connection.begin():
            self.publish_in(connection, "a", "b", "b", payload=b"second")
        claims = self.claim()
        assert [(claim.message.id, claim.message.payload) for claim in claims] == [
            ("a", b"first"),
            ("b", b"second"),
        ]

    def test_it_leaves_the_transaction_open_and_usable(self) -> None:
        self.register()
        with self.connect(self.store) as connection:
            transaction = connection.begin()
            self.publish_in(connection, "a")
            self.publish_in(connection)
            assert transaction.is_active
            assert connection.exec_driver_sql("select 1").scalar() == 1
            transaction.commit()
            assert not connection.closed
        assert self.drain() == ["a"]

    def test_something_else_than_a_connection_is_refused(self) -> None:
        with pytest.raises(UnsupportedError):
            self.publish_in(object(), "a")
