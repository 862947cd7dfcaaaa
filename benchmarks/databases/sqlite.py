"""SQLite: a file in a temporary folder for each site."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

import sqlalchemy as sa

from benchmarks.databases import WAL, Site
from benchmarks.databases.sql import CountedSqlStore, SqlFloor
from benchmarks.work import PAYLOAD, TOPIC
from queue_lib.durations import microseconds
from queue_lib.migrate import upgrade
from queue_lib.names import new_message_id
from queue_lib.stores.schema import build_tables
from queue_lib.stores.sql.dialect import Connection
from queue_lib.stores.sql.open import open_sql_store
from queue_lib.stores.sql.sqlite import SqliteDatabase, SqliteStatements
from queue_lib.stores.sql.sqlite.statements import render
from queue_lib.stores.sql.store import SqlStore

__all__ = ["SqliteHost", "SqliteSite"]

P = ParamSpec("P")
T = TypeVar("T")

_CHUNK = 100_000  # rows of one transaction: what the WAL grows by

_LAST = "select coalesce(max(seq), 0) from queue_messages"
_FILL = """
insert into queue_messages
    (id, topic_id, key, payload, headers, priority, deliver_at, published_at, stored_at, untaken)
with recursive n (n) as (select :first union all select n + 1 from n where n < :last)
select uuid(), (select id from queue_topics where name = :topic),
    case when :keys then 'k' || (n % :keys) end, :payload, null, 0, :due, :stored, :stored, 0
from n"""


class SqliteHost:
    """See `Host`."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="queue-bench-")
        self._numbers = iter(range(1_000_000))
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    @contextmanager
    def site(self, *, shared: bool = False) -> Iterator[SqliteSite]:
        path = Path(self._folder.name, f"{next(self._numbers)}.db")
        try:
            yield SqliteSite(path)
        finally:
            for file in path.parent.glob(f"{path.name}*"):
                file.unlink()


class SqliteSite(Site):
    """One file."""

    kind = "sqlite"

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = sa.make_url(f"sqlite:///{path}")
        self._tables = build_tables()
        upgrade(self.url)

    def store(self, *, wake: bool = True) -> SqlStore:
        return open_sql_store(self.url, wake=wake)

    def counted(self, *, wake: bool = True) -> CountedSqlStore:
        database = SqliteDatabase(self.url, self._tables, wake=wake)
        return CountedSqlStore(database, SqliteStatements(self._tables))

    def floor(self) -> SqliteFloor:
        return SqliteFloor(self._connect(), SqliteStatements(self._tables))

    def fill(
        self,
        count: int,
        *,
        keys: int = 0,
        due_in: timedelta = timedelta(0),
        age: timedelta = timedelta(0),
    ) -> None:
        stored = time.time_ns() // 1000 - microseconds(age)
        due = stored + microseconds(due_in) if due_in else 0
        with closing(self._connect()) as connection:
            connection.create_function("uuid", 0, new_message_id)
            connection.execute("insert or ignore into queue_topics (name) values (?)", (TOPIC,))
            for first in range(0, count, _CHUNK):
                (after,) = connection.execute(_LAST).fetchone()
                rows = {"first": first, "last": min(first + _CHUNK, count) - 1, "keys": keys}
                values = {"topic": TOPIC, "payload": PAYLOAD, "due": due, "stored": stored}
                connection.execute("begin immediate")
                connection.execute(_FILL, {**rows, **values})
                fan_out = {"after": after, "group": 0, "now": stored}
                connection.execute(render(self._tables)["fan_out"], fan_out)
                connection.execute("commit")
            # Now, or whoever writes next does it in the midst of what is measured.
            connection.execute("pragma wal_checkpoint(truncate)")

    def sizes(self) -> dict[str, int]:
        with closing(self._connect()) as connection:
            (pages,) = connection.execute("pragma page_count").fetchone()
            (page,) = connection.execute("pragma page_size").fetchone()
        wal = Path(f"{self._path}-wal")
        return {"file": pages * page, WAL: wal.stat().st_size if wal.exists() else 0}

    @contextmanager
    def hold_open(self) -> Iterator[None]:
        with closing(self._connect()) as connection:
            connection.execute("begin")
            connection.execute(_LAST).fetchone()  # its snapshot: no checkpoint passes that
            yield

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None)


class SqliteFloor(SqlFloor):
    """See `Floor`."""

    _synchronous = ""

    def run(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._run("normal", work, *args, **kwargs)

    def run_durably(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._run("full", work, *args, **kwargs)

    def _run(
        self,
        synchronous: str,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        if synchronous != self._synchronous:
            self.connection.execute(f"pragma synchronous={synchronous}")
            self._synchronous = synchronous
        self.connection.execute("begin immediate")
        answer = work(self.connection, *args, **kwargs)
        self.connection.execute("commit")
        return answer
