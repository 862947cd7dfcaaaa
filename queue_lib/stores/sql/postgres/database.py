"""PostgreSQL for the SQL store: connections of our own, and what its errors mean.

The connections are on autocommit: one call of a function is one transaction and one round trip.
They carry no state from one call to the next (no prepared statements, no session locks, no
settings), so that any of them, and any server behind a pooler, is as good as another. None is
ever idle in a transaction.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import psycopg
import sqlalchemy as sa

from queue_lib.errors import SchemaError, StoreError, StoreUnavailableError, UnsupportedError
from queue_lib.stores.schema import Tables
from queue_lib.stores.sql.dialect import Borrowed, Connection, Rows
from queue_lib.stores.sql.postgres.listen import (
    ANY,
    CHANNEL,
    IN_TRANSACTION,
    Notifier,
    follow,
    keep_alive,
    sign,
)

__all__ = ["PostgresDatabase", "classify", "own_engine"]

P = ParamSpec("P")
T = TypeVar("T")

_TOO_STRICT = "QL001"  # raised by our functions: the isolation is not READ COMMITTED
_MISSING = frozenset({"42P01", "42883", "42703", "3F000"})  # a table, function, column, schema
# Connection, lost race, resources, operator, system; lock timeout, read-only after a failover.
_PASSING = ("08", "40", "53", "57", "58", "55P03", "25006")
# The server goes away or has become a standby: what is in the pool leads to the same one.
_FAILED_OVER = frozenset({"25006", "57P01", "57P02", "57P03"})

_MANY = 16  # topics that are announced by name


class PostgresDatabase:
    """The `Database` of PostgreSQL, beside a host's engine or on a URL."""

    def __init__(
        self,
        target: sa.Engine | sa.URL,
        tables: Tables,
        *,
        wake: bool = True,
        listen_url: sa.URL | str | None = None,
    ) -> None:
        self.migration_target = target
        self._source = own_engine(target)
        self._listen_source = (
            self._source if listen_url is None else own_engine(sa.make_url(listen_url))
        )
        self._isolates = False  # whether the server's default is stricter than what we need
        self._tables = tables
        self._wake = wake
        self._start_afresh()

    def _start_afresh(self) -> None:
        self.instance = secrets.token_hex(4) if self._wake else ""
        """Signs the wake-ups of this process; empty: there are none."""
        # The connection that came back last goes out first: a publisher that went round all of
        # them would find each time a server process whose caches are cold.
        self._pool = sa.QueuePool(
            lambda: cast(Any, _connect(self._source)), use_lifo=True, reset_on_return=None
        )
        self._generation = 0
        self._notifier = Notifier(self._notify)

    def write(
        self,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        try:
            return self._attempt(work, *args, **kwargs)
        except psycopg.Error as error:
            if error.sqlstate != _TOO_STRICT:
                raise
        # Setting the level costs two round trips a call, so it is done only where it is needed,
        # from now on.
        self._isolates = True
        return self._attempt(work, *args, **kwargs)

    def _attempt(
        self,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        pooled = self._check_out()
        driver: Any = pooled.driver_connection
        try:
            with driver.transaction() if self._isolates else contextlib.nullcontext():
                return work(driver, *args, **kwargs)
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C: the answer may still be under way
                pooled.invalidate()
            elif driver.closed or _sqlstate(error) in _FAILED_OVER:
                # What is in the pool leads to the same server, or to none.
                self._generation += 1
                pooled.invalidate()
            raise
        finally:
            pooled.close()

    def _check_out(self) -> sa.PoolProxiedConnection:
        while True:
            generation = self._generation  # before: at worst a new connection counts as an old one
            pooled = self._pool.connect()
            if pooled.info.setdefault("generation", generation) == generation:
                return pooled
            pooled.invalidate()
            pooled.close()

    write_durably = write  # synchronous_commit is left as it is
    read = write

    driver_error = psycopg.Error

    def borrow(self, connection: sa.Connection) -> Connection:
        dialect = connection.dialect
        if dialect.name != "postgresql" or dialect.driver not in ("psycopg", "psycopg2"):
            raise UnsupportedError(
                f"a connection of {dialect.name}+{dialect.driver}: "
                "must be one of postgresql+psycopg or postgresql+psycopg2"
            )
        driver: Any = connection.connection.driver_connection
        if driver.autocommit:
            raise UnsupportedError(
                "the connection is on autocommit: there is no transaction to publish in"
            )
        return (
            Borrowed(connection) if dialect.driver == "psycopg" else _BorrowedPsycopg2(connection)
        )

    def classify(self, error: BaseException, borrowed: Borrowed | None = None) -> type[Exception]:
        return classify(error)

    def sender(self, *, borrowed: bool) -> str:
        if not self._wake:
            return ""
        if borrowed:
            return IN_TRANSACTION
        return self.instance if self._notifier.lets_publisher_send() else ""

    def published(self, topics: Sequence[str]) -> None:
        if self._wake:
            self._notifier.add(topics)

    def _notify(self, topics: list[str]) -> None:
        signature = sign(self._tables, self.instance)
        names = topics if len(topics) <= _MANY else [ANY]
        payloads = [f"{signature} {name}" for name in names]
        # A NOTIFY has a commit record, whose way to the disk publishers would queue up behind; of
        # this transaction nothing needs to survive a crash.
        notify = (
            "SELECT pg_notify(%s, p), set_config('synchronous_commit', 'off', true)"
            " FROM unnest(%s::text[]) AS p"
        )
        self.write(lambda connection: connection.execute(notify, (CHANNEL, payloads)))

    def listen(self, wake: Callable[[str], None], stop: threading.Event) -> None:
        if not self._wake:
            raise UnsupportedError("wake-ups are turned off")

        def heard(payload: str) -> None:
            queue, _, rest = payload.partition(" ")
            sender, _, topic = rest.partition(" ")
            if queue == here and sender != self.instance:
                wake("" if topic == ANY else topic)

        here = self._tables.qualify("{q}")
        try:
            with contextlib.closing(_connect(self._listen_source)) as connection:
                connection.execute(f"LISTEN {CHANNEL}")
                wake("")  # for what was published while nobody listened
                follow(connection, heard, stop)
        except psycopg.Error as error:
            raise StoreUnavailableError(f"cannot listen: {str(error).strip()}") from error

    def before_fork(self) -> None:
        self._notifier.freeze()

    def after_fork(self, *, child: bool) -> None:
        if not child:
            self._notifier.thaw()
            return
        self._start_afresh()  # the sockets of the old pool are the parent's

    def close(self) -> None:
        self._notifier.close()
        self._pool.dispose()


def classify(error: BaseException) -> type[Exception]:
    """See `Database.classify`."""
    state = _sqlstate(error)
    if state in _MISSING:
        return SchemaError
    if state is not None:
        return StoreUnavailableError if state.startswith(_PASSING) else StoreError
    # Not an answer of the server: it is out of reach, went away, or no connection came free.
    passing = getattr(error, "connection_invalidated", False) or isinstance(
        error,
        psycopg.OperationalError | sa.exc.OperationalError | sa.exc.TimeoutError | OSError,
    )
    return StoreUnavailableError if passing else StoreError


def _connect(engine: sa.Engine) -> psycopg.Connection[Any]:
    """Connect as an engine does, past its pool."""
    pooled = engine.raw_connection()
    driver = cast("psycopg.Connection[Any]", pooled.driver_connection)
    pooled.detach()
    # Of the transactions that we do open. (After the hooks: SQLAlchemy's own resets it.)
    driver.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return driver


class _BorrowedPsycopg2(Borrowed):
    def execute(self, statement: str, parameters: Any = (), /) -> Rows:
        return super().execute(statement.replace("%b", "%s"), parameters)


def own_engine(target: sa.Engine | sa.URL) -> sa.Engine:
    """Make an engine of our own. Of a host's on psycopg it takes over how to connect.

    So a host's `creator`, `connect_args` and connect events keep working, but not its pool: a
    heartbeat must not wait for connections that handlers hold.
    """
    options: dict[str, Any] = {
        "isolation_level": "AUTOCOMMIT",
        "hide_parameters": True,  # payloads are nobody's business in logs and errors
        "use_native_hstore": False,
    }
    url = target.url if isinstance(target, sa.Engine) else target
    if isinstance(target, sa.Engine) and _is_on_psycopg(target):
        options["pool"] = target.pool.recreate()
    else:
        url = url.set(drivername="postgresql+psycopg")
        if "connect_timeout" not in url.query:
            options["connect_args"] = {"connect_timeout": 10}
    engine = sa.create_engine(url, **options)
    sa.event.listen(engine, "connect", _prepare, insert=True)
    sa.event.listen(engine, "handle_error", _renew_pool)
    return engine


def _is_on_psycopg(engine: sa.Engine) -> bool:
    return engine.dialect.driver == "psycopg" and not engine.dialect.is_async


def _prepare(connection: psycopg.Connection[Any], _record: object) -> None:
    connection.autocommit = True  # first of all, so that no hook of the host begins a transaction
    # Behind a pooler a prepared statement is not there; and its plan would be as old as it is.
    connection.prepare_threshold = None
    keep_alive(connection)


def _renew_pool(context: sa.engine.ExceptionContext) -> None:
    """Have SQLAlchemy replace this connection and, when they are used next, the pool's others."""
    if getattr(context.original_exception, "sqlstate", None) in _FAILED_OVER:
        context.is_disconnect = True


def _sqlstate(error: BaseException) -> str | None:
    origin = getattr(error, "orig", None) or error
    return getattr(origin, "sqlstate", None) or getattr(origin, "pgcode", None)
