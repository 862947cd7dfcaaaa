"""Connections of our own to one ClickHouse, through either driver of clickhouse-sqlalchemy.

The engine's pool makes the connections and keeps them; statements go straight to the driver's
client in them. (The dialect's native cursor cuts its connection after each statement, and its
HTTP cursor writes and reads every value in Python: two to three times the time of a statement.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from queue_lib.errors import StoreError, UnsupportedError
from queue_lib.stores.clickhouse.cluster import CLUSTER_OPTION, cluster_of, split_url
from queue_lib.stores.clickhouse.codec import literal
from queue_lib.stores.clickhouse.errors import DRIVER_ERRORS, translate

__all__ = ["Database", "own_engine"]

Rows = Sequence[Sequence[Any]]

# async_insert, on by default of late, would put the rows of several callers into one block, so
# that the refusal of one is the failure of all; and would wait for company.
_INSERT = {"async_insert": 0}
# Whole answers only: an error in mid-stream is an error and not half a result.
_HTTP = {
    "wait_end_of_query": 1, "enable_http_compression": 0,
    "output_format_json_quote_64bit_integers": 0,
}  # fmt: skip
# Parts are blocks; a block that is one operation must not be cut in two.
_ONE_BLOCK = {
    **_INSERT, "max_insert_threads": 1, "max_insert_block_size": 1_048_576,
    "min_insert_block_size_rows": 1_048_576, "min_insert_block_size_bytes": 1 << 30,
}  # fmt: skip


class Database:
    """Runs statements. Thread-safe; survives a fork (`after_fork`)."""

    def __init__(self, target: sa.Engine | sa.URL) -> None:
        self.migration_target = target
        self._engine = own_engine(target)
        driver = self._engine.dialect.driver
        if driver not in ("native", "http"):
            self._engine.dispose()
            raise UnsupportedError(f"clickhouse+{driver}: must be clickhouse+native or +http")
        self._native = driver == "native"
        self.name: str | None = self._engine.url.database
        self.cluster = cluster_of(self._engine)
        self._expected: tuple[str, Mapping[str, str]] | None = None

    def expect(self, database: str, engines: Mapping[str, str]) -> None:
        """Refuse to work on tables of `database` that have other engines than these."""
        self._expected = database, engines

    def select(self, sql: str) -> list[Any]:
        """Run a query; return its rows."""
        with self._connect() as client:
            return self._select(client, sql)

    def insert(self, table: str, columns: Sequence[str], rows: Rows) -> None:
        """Insert rows as one block: all of them or none."""
        head = f"INSERT INTO {table} ({', '.join(columns)})"
        with self._connect() as client:
            if self._native:
                client.execute(
                    f"{head} VALUES", list(zip(*rows, strict=True)), columnar=True,
                    settings=self._writing(table),
                )  # fmt: skip
            else:
                body = "\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
                client.raw(
                    f"{head} FORMAT JSONCompactEachRow\n{body}",
                    params={**_HTTP, **self._writing(table)},
                )

    def command(self, sql: str) -> None:
        """Run a statement that returns nothing: an INSERT … SELECT (one block), a DELETE."""
        with self._connect() as client:
            if self._native:
                client.execute(sql, settings=self._writing())
            else:
                client.raw(sql, params={**_HTTP, **self._writing()})

    @contextmanager
    def _connect(self) -> Iterator[Any]:
        """Lend a driver's client; make its errors ours."""
        with _Translated(), self._engine.connect() as connection:
            client = _client(connection)
            if self._expected is not None:
                self._check(client, *self._expected)
            yield client

    def _select(self, client: Any, sql: str) -> list[Any]:
        settings = self.cluster.reading() if self.cluster else {}
        if self._native:
            rows: list[Any] = client.execute(sql, settings=settings)
            return rows
        answer = client.raw(f"{sql}\nFORMAT JSONCompactEachRow", params={**_HTTP, **settings})
        return [json.loads(line) for line in answer.split("\n") if line]

    def _writing(self, table: str = "") -> dict[str, Any]:
        return {**_ONE_BLOCK, **self.cluster.writing(table)} if self.cluster else _ONE_BLOCK

    def _check(self, client: Any, database: str, engines: Mapping[str, str]) -> None:
        """Look at the tables until all are there: once, for the time of this process.

        Replicated tables must not be written to as if there were one server, and none of what
        makes several safe holds for other engines (Distributed, Shared…).
        """
        found = self._select(
            client,
            f"SELECT name, engine FROM system.tables WHERE database = {literal(database)} "
            f"AND name IN ({literal(engines)})",
        )
        for name, engine in found:
            if engine != engines[name]:
                where = f"on the cluster {self.cluster.name!r}" if self.cluster else "on one server"
                raise StoreError(
                    f"table {name}: has the engine {engine}, but a queue {where} needs "
                    f"{engines[name]}; see docs/clickhouse.md, Clusters"
                )
        if len(found) == len(engines):
            self._expected = None

    def after_fork(self) -> None:
        """Leave the parent's connections to it."""
        self._engine.dispose(close=False)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()


def own_engine(target: sa.Engine | sa.URL) -> sa.Engine:
    """Make an engine of ours that connects as the host's does, and closes its connections."""
    if isinstance(target, sa.Engine):
        cluster = cluster_of(target)
        # Its creator and its connect hooks, but connections that no handler can use up.
        engine = sa.create_engine(target.url, pool=target.pool.recreate())
    else:
        target, cluster = split_url(target)
        engine = sa.create_engine(target, pool_size=5, max_overflow=20)
    engine.update_execution_options(**{CLUSTER_OPTION: cluster})
    sa.event.listen(engine, "close", _close)
    return engine


def _client(connection: sa.Connection) -> Any:
    """Return `clickhouse_driver.Client`, or the HTTP transport."""
    driver: Any = connection.connection.driver_connection
    return driver.transport


def _close(driver: Any, _record: object) -> None:
    """Really close: the dialect's own `close` does nothing."""
    if driver is not None:
        client = driver.transport
        (client.disconnect if hasattr(client, "disconnect") else client.http.close)()


class _Translated:
    """Turn what the drivers raise into the errors of this library."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DRIVER_ERRORS):
            raise translate(error) from error
        if isinstance(error, sa.exc.SQLAlchemyError):  # no connection came free, say
            raise translate(OSError(str(error))) from error
