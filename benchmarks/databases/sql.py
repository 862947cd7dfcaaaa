"""What SQLite and PostgreSQL share: a store that counts, and a floor of the store's statements."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from benchmarks.work import GROUP, LEASE, PAYLOAD, TOPIC
from queue_lib import Claimed, ClaimRequest
from queue_lib.durations import microseconds
from queue_lib.names import new_message_id
from queue_lib.stores.base import ClaimBatch
from queue_lib.stores.sql.dialect import AppendRow, Connection, Database, Held, Statements
from queue_lib.stores.sql.store import SqlStore
from queue_lib.testing.statements import RecordingDatabase

__all__ = ["CountedSqlStore", "SqlFloor"]

P = ParamSpec("P")
T = TypeVar("T")

_CHUNK = 10_000
_LEASE = microseconds(LEASE)


class CountedSqlStore(SqlStore):
    """See `CountedStore`."""

    def __init__(self, database: Database, statements: Statements) -> None:
        self._recording = RecordingDatabase(database)
        self.batches: list[int] = []
        super().__init__(cast("Database", self._recording), statements)

    @property
    def statements(self) -> int:
        return len(self._recording.statements)

    def claim(self, request: ClaimRequest) -> ClaimBatch:
        return self._counted(super().claim(request))

    def ack_and_claim(
        self, claims: Sequence[Claimed], request: ClaimRequest
    ) -> tuple[list[str], ClaimBatch]:
        held, batch = super().ack_and_claim(claims, request)
        return held, self._counted(batch)

    def _counted(self, batch: ClaimBatch) -> ClaimBatch:
        self.batches.append(len(batch))
        return batch


class SqlFloor(abc.ABC):
    """See `Floor`. Not thread-safe."""

    def __init__(self, connection: Any, statements: Statements) -> None:
        self.connection = connection
        self.statements = statements
        self._group: int | None = None
        self._done: list[Held] = []

    @abc.abstractmethod
    def run(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run one operation in one transaction; durable as the store's claims are."""

    @abc.abstractmethod
    def run_durably(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run one operation in one transaction; durable as the store's publishes are."""

    def publish(self, count: int, payload: bytes) -> None:
        now = time.time_ns() // 1000
        rows = [
            AppendRow(TOPIC, new_message_id(), None, payload, None, 0, 0, now, False)
            for _ in range(count)
        ]
        self.run_durably(self.statements.append, rows, None)

    def fill(self, count: int) -> None:
        for first in range(0, count, _CHUNK):
            self.publish(min(_CHUNK, count - first), PAYLOAD)

    def drain(self, batch: int) -> int:
        group, done = self._group_id(), self._done
        rows, *_ = self.run(self.statements.claim, group, done, batch, _LEASE, 0, None)
        self._done = [Held(row.seq, row.token, row.key) for row in rows]
        return len(rows)

    def claim_and_ack(self, batch: int) -> int:
        count = self.drain(batch)
        if self._done:
            self.run(self.statements.settle, self._group_id(), self._done, None, None)
        self._done = []
        return count

    def _group_id(self) -> int:
        if self._group is None:
            self._group = self.run(self.statements.find_group, TOPIC, GROUP)
            assert self._group is not None
        return self._group

    def close(self) -> None:
        self.connection.close()
