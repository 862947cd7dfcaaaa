"""The floor: the store's own statements through the database driver alone.

What is left out is what the library adds: its pool, the engine with its threads, messages as
objects, validation, retries and the translation of errors.
"""

from __future__ import annotations

import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
import sqlalchemy as sa

from queue_lib.stores.schema import build_tables
from queue_lib.stores.sql.dialect import AppendRow, Connection, Held, Statements

P = ParamSpec("P")
T = TypeVar("T")


class Floor:
    """Runs the statements of one database on one raw connection."""

    def __init__(self, url: sa.URL) -> None:
        tables = build_tables()
        self._sqlite = url.get_backend_name() == "sqlite"
        self._synchronous = ""
        self.statements: Statements
        if self._sqlite:
            from queue_lib.stores.sql.sqlite import SqliteStatements

            assert url.database is not None
            self._raw: Any = sqlite3.connect(url.database, isolation_level=None)
            self.statements = SqliteStatements(tables)
        else:
            from queue_lib.stores.sql.postgres import PostgresStatements

            dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
            self._raw = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)
            self.statements = PostgresStatements(tables)

    def run(
        self,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run one operation in one transaction; durable as the store's own claims are."""
        return self._run("normal", work, *args, **kwargs)

    def run_durably(
        self,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run one operation in one transaction; durable as the store's own publishes are."""
        return self._run("full", work, *args, **kwargs)

    def _run(self, synchronous: str, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        if not self._sqlite:
            return work(self._raw, *args, **kwargs)
        if synchronous != self._synchronous:
            self._raw.execute(f"pragma synchronous={synchronous}")
            self._synchronous = synchronous
        self._raw.execute("begin immediate")
        answer = work(self._raw, *args, **kwargs)
        self._raw.execute("commit")
        return answer

    def listen(self, channel: str) -> None:
        """Hear of notifications from now on. PostgreSQL only."""
        self._raw.execute(f"LISTEN {channel}")

    def hear(self, timeout: float) -> bool:
        """Wait for one notification."""
        return any(True for _ in self._raw.notifies(timeout=timeout, stop_after=1))

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        rows: list[Any] = self._raw.execute(statement, tuple(parameters)).fetchall()
        return rows

    def close(self) -> None:
        self._raw.close()


def notify_and_claim(publisher: Floor, consumer: Floor, topic: str, count: int) -> float:
    """Return the median ms from a publish, over its NOTIFY, to the answer of a claim. PostgreSQL.

    Both connections are in this process, in a thread each, and do nothing else.
    """
    found = consumer.run(consumer.statements.find_group, topic, "g0")
    assert found is not None
    consumer.listen("bench")
    began, took, claimed = [0.0], list[float](), threading.Semaphore(0)

    def consume() -> None:
        for _ in range(count):
            assert consumer.hear(30)
            rows, *_ = consumer.run(consumer.statements.claim, found, [], 4, 60_000_000, 0, None)
            took.append(1000 * (time.perf_counter() - began[0]))
            held = [Held(row.seq, row.token, row.key) for row in rows]
            consumer.run(consumer.statements.settle, found, held, None, None)
            claimed.release()

    thread = threading.Thread(target=consume)
    thread.start()
    for number in range(count):
        row = AppendRow(topic, f"latency {number}", None, b"x", None, 0, 0, 0, False)
        began[0] = time.perf_counter()
        publisher.run_durably(publisher.statements.append, [row], None)
        publisher.query(
            "SELECT pg_notify('bench', ''), set_config('synchronous_commit', 'off', true)"
        )
        assert claimed.acquire(timeout=30)
        time.sleep(0.02)
    thread.join()
    publisher.close()
    consumer.close()
    return statistics.median(took)
