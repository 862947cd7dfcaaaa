"""PostgreSQL: a server of our own that waits for the disk, and a database on it for each site."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import psycopg
import sqlalchemy as sa

from benchmarks.databases import Site
from benchmarks.databases.sql import CountedSqlStore, SqlFloor
from benchmarks.work import PAYLOAD, TOPIC
from queue_lib.durations import microseconds
from queue_lib.migrate import upgrade
from queue_lib.stores.schema import build_tables
from queue_lib.stores.sql.dialect import Connection
from queue_lib.stores.sql.open import open_sql_store
from queue_lib.stores.sql.postgres import PostgresDatabase, PostgresStatements
from queue_lib.stores.sql.store import SqlStore
from tests.servers import PostgresServer

__all__ = ["PostgresFloor", "PostgresHost", "PostgresSite", "notify_and_claim"]

P = ParamSpec("P")
T = TypeVar("T")

_TOPIC = "insert into queue_topics (name) values (%s) on conflict (name) do nothing"
# As append_v1 places them: the first of a lane is its head, unless the lane has one.
_FILL = """
with stored as (
  insert into queue_messages (
    seq, id, topic_id, key, priority, deliver_at, published_at, stored_at, untaken, headers, payload
  )
  select nextval('queue_message_seq'), gen_random_uuid()::text, t.id,
    case when %(keys)s > 0 then 'k' || mod(n, greatest(%(keys)s, 1)) end, 0, %(due)s, %(stored)s,
    %(stored)s, false, null, %(payload)s
  from generate_series(0, %(count)s - 1) n join queue_topics t on t.name = %(topic)s
  returning seq, topic_id, key, deliver_at, stored_at
)
insert into queue_deliveries (group_id, seq, state, priority, at, key)
select p.group_id, p.seq,
  case when p.behind then 2 when p.deliver_at > p.stored_at then 1 else 0 end, 0,
  case when p.behind then p.deliver_at else greatest(p.deliver_at, p.stored_at) end, p.key
from (
  select g.id as group_id, s.*,
    s.key is not null and (
      row_number() over (partition by g.id, s.key order by s.seq) > 1
      or exists (
        select from queue_deliveries h
        where h.group_id = g.id and h.key = s.key and h.state in (0, 1, 3, 5, 6)
      )
    ) as behind
  from stored s join queue_groups g on g.topic_id = s.topic_id
) p"""
_SIZES = """
select pg_table_size('queue_messages'), pg_indexes_size('queue_messages'),
  pg_table_size('queue_deliveries'), pg_indexes_size('queue_deliveries')"""


class PostgresHost:
    """See `Host`."""

    def __enter__(self) -> Self:
        self._server = PostgresServer(durable=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    @contextmanager
    def site(self, *, shared: bool = False) -> Iterator[PostgresSite]:
        name = self._server.create_database()
        try:
            yield PostgresSite(self._server.url(name))
        finally:
            self._server.drop_database(name)


class PostgresSite(Site):
    """One database."""

    kind = "postgres"

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(url)
        self._tables = build_tables()
        upgrade(self.url)

    def store(self, *, wake: bool = True) -> SqlStore:
        return open_sql_store(self.url, wake=wake)

    def counted(self, *, wake: bool = True) -> CountedSqlStore:
        database = PostgresDatabase(self.url, self._tables, wake=wake)
        return CountedSqlStore(database, PostgresStatements(self._tables))

    def floor(self) -> PostgresFloor:
        return PostgresFloor(self._connect(), PostgresStatements(self._tables))

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
        values = {"count": count, "keys": keys, "due": due, "stored": stored, "topic": TOPIC}
        with self._connect() as connection:
            connection.execute(_TOPIC, (TOPIC,))
            connection.execute(_FILL, {**values, "payload": PAYLOAD})
            # Now, or the server does it in the midst of what is measured.
            connection.execute("vacuum (analyze) queue_messages, queue_deliveries")
            connection.execute("checkpoint")

    def sizes(self) -> dict[str, int]:
        names = "messages", "messages' indexes", "deliveries", "deliveries' indexes"
        with self._connect() as connection:
            found = connection.execute(_SIZES).fetchone()
        assert found is not None
        return dict(zip(names, found, strict=True))

    @contextmanager
    def hold_open(self) -> Iterator[None]:
        with self._connect() as connection:
            connection.execute("begin isolation level repeatable read")
            connection.execute("select from queue_groups")  # its snapshot: vacuum stops there
            yield

    def _connect(self) -> psycopg.Connection[Any]:
        dsn = self.url.set(drivername="postgresql").render_as_string(hide_password=False)
        return psycopg.connect(dsn, autocommit=True, prepare_threshold=None)


class PostgresFloor(SqlFloor):
    """See `Floor`."""

    def run(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return work(self.connection, *args, **kwargs)

    run_durably = run

    def listen(self, channel: str) -> None:
        """Hear of notifications from now on."""
        self.connection.execute(f"LISTEN {channel}")

    def heard(self, timeout: float, *, at_most: int | None = None) -> int:
        """Wait for notifications; return how many came."""
        return sum(1 for _ in self.connection.notifies(timeout=timeout, stop_after=at_most))


def notify_and_claim(site: PostgresSite, count: int) -> float:
    """Return the median ms from a publish, over its NOTIFY, to the answer of a claim.

    Both connections are in this process, in a thread each, and do nothing else.
    """
    publisher, consumer = site.floor(), site.floor()
    consumer.listen("bench")
    began, took, claimed = [0.0], list[float](), threading.Semaphore(0)

    def consume() -> None:
        for _ in range(count):
            assert consumer.heard(30, at_most=1)
            assert consumer.drain(4) == 1
            took.append(1000 * (time.perf_counter() - began[0]))
            assert consumer.drain(4) == 0
            claimed.release()

    thread = threading.Thread(target=consume)
    thread.start()
    for _ in range(count):
        began[0] = time.perf_counter()
        publisher.publish(1, b"x")
        publisher.connection.execute(
            "SELECT pg_notify('bench', ''), set_config('synchronous_commit', 'off', true)"
        )
        assert claimed.acquire(timeout=30)
        time.sleep(0.1)
    thread.join()
    publisher.close()
    consumer.close()
    return statistics.median(took)
