"""ClickHouse: a server of our own, and a database on it for each site, through either driver."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from benchmarks.databases import Site
from benchmarks.work import GROUP, PAYLOAD, TOPIC
from queue_lib import ClaimRequest, DistributedLocker, Message, ProcessLocker
from queue_lib.lockers.sql import SQLLocker
from queue_lib.migrate import upgrade
from queue_lib.names import new_message_id
from queue_lib.stores.base import ClaimBatch
from queue_lib.stores.clickhouse import statements
from queue_lib.stores.clickhouse.codec import chunks, literal
from queue_lib.stores.clickhouse.database import Database, Rows
from queue_lib.stores.clickhouse.open import open_clickhouse_store
from queue_lib.stores.clickhouse.schema import (
    FENCE_BITS,
    LEASED,
    LIVE_COLUMNS,
    MESSAGE_COLUMNS,
    build_clickhouse_tables,
)
from queue_lib.stores.clickhouse.statements import Statements
from queue_lib.stores.clickhouse.store import ClickHouseStore
from tests.clickhouse_server import ClickHouseServer

__all__ = ["ClickHouseHost", "ClickHouseSite"]

_CHUNK = 50_000
_HIGH = 1 << (FENCE_BITS + 40)  # above every fence


class ClickHouseHost:
    """See `Host`."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __enter__(self) -> Self:
        self._server = ClickHouseServer()
        self._folder = tempfile.TemporaryDirectory(prefix="queue-bench-")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self._folder.cleanup()

    @contextmanager
    def site(self, *, shared: bool = False) -> Iterator[ClickHouseSite]:
        name = self._server.create_database()
        driver = "http" if self._kind.endswith("http") else "native"
        locks = Path(self._folder.name, f"{name}.db") if shared else None
        try:
            with closing(ClickHouseSite(self._kind, self._server.url(name, driver), locks)) as site:
                yield site
        finally:
            self._server.drop_database(name)


class ClickHouseSite(Site):
    """One database, with a locker: of this process, or in a file that others can open as well."""

    def __init__(self, kind: str, url: str, locks: Path | None) -> None:
        self.kind = kind
        self.url = sa.make_url(url)
        self.locker_url = f"sqlite:///{locks}" if locks else ""
        self._shared = SQLLocker(self.locker_url) if locks else None
        self._locker: DistributedLocker = self._shared or ProcessLocker()
        self._tables = build_clickhouse_tables(self.url.database)
        self._database = Database(self.url)
        upgrade(self.url)

    def store(self, *, wake: bool = True) -> ClickHouseStore:
        return open_clickhouse_store(self.url, self._locker)

    def counted(self, *, wake: bool = True) -> _CountedStore:
        return _CountedStore(_CountingDatabase(self.url), self._tables, self._locker)

    def floor(self) -> _Floor:
        return _Floor(self.url)

    def fill(
        self,
        count: int,
        *,
        keys: int = 0,
        due_in: timedelta = timedelta(0),
        age: timedelta = timedelta(0),
    ) -> None:
        # Numbers, fences and cursors hang together: only the store itself gets them right.
        def clock() -> int:
            return (time.time_ns() // 1000) - age // timedelta(microseconds=1)

        now = datetime.now(UTC) - age
        due = now + due_in if due_in else None
        with closing(open_clickhouse_store(self.url, self._locker, clock=clock)) as store:
            for first in range(0, count, _CHUNK):
                store.append([
                    Message(
                        TOPIC, PAYLOAD, f"k{number % keys}" if keys else "", new_message_id(),
                        deliver_at=due, published_at=now,
                    )
                    for number in range(first, min(first + _CHUNK, count))
                ])  # fmt: skip

    def sizes(self) -> dict[str, int]:
        return self._of_parts("sum(bytes_on_disk)")

    def parts(self) -> dict[str, int]:
        """Return how many active parts each table has."""
        return self._of_parts("count()")

    def _of_parts(self, what: str) -> dict[str, int]:
        found = self._database.select(
            f"SELECT table, {what} FROM system.parts WHERE active "
            f"AND database = {literal(self._tables.database)} GROUP BY table"
        )
        sizes = {table.removeprefix(self._tables.prefix): int(value) for table, value in found}
        return {name: sizes.get(name, 0) for name in ("live", "messages")}

    def close(self) -> None:
        self._database.close()
        if self._shared is not None:
            self._shared.close()


class _CountingDatabase(Database):
    sent = 0

    def select(self, sql: str) -> list[Any]:
        self.sent += 1
        return super().select(sql)

    def insert(self, table: str, columns: Sequence[str], rows: Rows) -> None:
        self.sent += 1
        super().insert(table, columns, rows)

    def command(self, sql: str) -> None:
        self.sent += 1
        super().command(sql)


class _CountedStore(ClickHouseStore):
    """See `CountedStore`."""

    def __init__(self, database: _CountingDatabase, *given: Any) -> None:
        super().__init__(database, *given)
        self._counting = database
        self.batches: list[int] = []

    @property
    def statements(self) -> int:
        return self._counting.sent

    def claim(self, request: ClaimRequest) -> ClaimBatch:
        batch = super().claim(request)
        self.batches.append(len(batch))
        return batch


class _Floor:
    """See `Floor`: the same statements with rows of the same size, which nobody else looks at."""

    def __init__(self, url: sa.URL) -> None:
        self._database = Database(url)
        self._sql = Statements(build_clickhouse_tables(url.database))
        self._numbers = iter(range(1 << 40))
        self._raise = self._sql.fill(statements.RAISE, name=f"g:floor:{GROUP}", fence=1, locker=1)
        self._held: list[int] = []

    def publish(self, count: int, payload: bytes) -> None:
        ids = [new_message_id() for _ in range(count)]
        for part in chunks(ids):
            self._database.select(self._sql.fill(statements.IDS, ids=part))
        now, text = time.time_ns() // 1000, f"u{payload.decode()}"
        rows = [
            ("floor", _HIGH + next(self._numbers), id_, "", 0, 0, 0, now, 0, "", text)
            for id_ in ids
        ]
        self._database.insert(self._sql.messages, MESSAGE_COLUMNS, rows)

    def fill(self, count: int) -> None:
        """Do nothing: the rows are made up."""
        self._database.command(self._raise)

    def drain(self, batch: int) -> int:
        self._write(self._held, deleted=1)
        self._held = [next(self._numbers) for _ in range(batch)]
        self._write(self._held, deleted=0)
        self._database.select(
            self._sql.fill(
                statements.READ_BACK, topic="floor", group=GROUP, seqs=self._held,
                token="t", name=f"g:floor:{GROUP}", cursor=0, log=0,  # noqa: S106
            )
        )  # fmt: skip
        return batch

    def claim_and_ack(self, batch: int) -> int:
        self.drain(batch)
        self._write(self._held, deleted=1)
        self._held = []
        return batch

    def _write(self, seqs: list[int], *, deleted: int) -> None:
        if seqs:
            rows = [
                ("floor", GROUP, LEASED, "", 0, seq, _HIGH + deleted, deleted, "", 0, 0, 0, "t", 0,
                 "", 0, 0, 0)
                for seq in seqs
            ]  # fmt: skip
            self._database.insert(self._sql.live, LIVE_COLUMNS, rows)

    def close(self) -> None:
        self._database.close()
