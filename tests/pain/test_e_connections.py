"""E. Connections, poolers, failover."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from textwrap import dedent

import psycopg
import pytest
import sqlalchemy as sa

from queue_lib import Delivery, Message, Stats, StoreUnavailableError, migrate, open_queue
from queue_lib.engine.queue import StoreQueue
from queue_lib.stores.sql.open import open_sql_store
from queue_lib.testing.faults import PausingStore
from tests.engine.conftest import OpenQueue
from tests.engine.harness import (
    DEADLINE,
    FAST,
    GROUP,
    MINUTE,
    TOPIC,
    Backend,
    Inbox,
    eventually,
    messages,
)
from tests.examples.running import copied, run
from tests.pain.conftest import OwnQueue
from tests.pain.proxy import Proxy
from tests.pgbouncer import PgBouncer
from tests.servers import Postgres, PostgresServer, ServerUnavailableError

OURS = "FROM pg_stat_activity WHERE application_name = 'ours'"


@pytest.fixture
def url(postgres_migrated_url: str) -> sa.URL:
    """The way to a database on which our connections can be told from others."""
    return sa.make_url(postgres_migrated_url).update_query_dict({"application_name": "ours"})


@pytest.fixture
def admin(postgres_migrated_url: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(postgres_migrated_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


# -- the listener --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_lost_listener_is_back_within_seconds_and_says_so(
    url: sa.URL, admin: sa.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """P47. One line for the loss, one for the recovery; then a publish wakes as before."""
    listening = f"SELECT pid {OURS} AND query = 'LISTEN queue_lib'"
    caplog.set_level(logging.INFO, "queue_lib")
    inbox = Inbox()
    with open_queue(url) as queue, open_queue(url) as elsewhere:
        queue.subscribe(TOPIC, GROUP, inbox, **MINUTE)
        eventually(lambda: admin.exec_driver_sql(listening).all())
        (pid,) = admin.exec_driver_sql(listening).scalars()
        admin.exec_driver_sql("SELECT pg_terminate_backend(%s)", (pid,))
        eventually(lambda: "queue-listener works again" in caplog.text)
        assert admin.exec_driver_sql(listening).scalar_one() != pid
        elsewhere.publish(*messages(1))
        inbox.wait()
    about_it = [r.levelname for r in caplog.records if "queue-listener" in r.getMessage()]
    assert about_it == ["ERROR", "INFO"]


# -- behind PgBouncer ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bouncer(postgres_server: Postgres) -> Iterator[PgBouncer]:
    try:
        bouncer = PgBouncer(sa.make_url(postgres_server.url("postgres")))
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    with bouncer:
        yield bouncer


def test_behind_a_transaction_pooler_polling_is_enough(
    bouncer: PgBouncer, postgres_migrated_url: str
) -> None:
    """P51. Nobody has set anything: LISTEN hears nothing there, and nothing depends on it."""
    through = bouncer.url(sa.make_url(postgres_migrated_url))
    inbox = Inbox()
    with open_queue(through) as queue, open_queue(through) as elsewhere:
        queue.subscribe(TOPIC, GROUP, inbox, **FAST)
        elsewhere.publish(*messages(20), *messages(20, start=20, key="k"))
        inbox.wait(40)
        eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
    assert inbox.attempts == [1] * 40


@pytest.mark.xfail(
    strict=True,
    reason="LISTEN through a transaction pooler succeeds; that it is deaf nobody says",
)
def test_a_listener_that_cannot_hear_says_so_once(
    bouncer: PgBouncer, postgres_migrated_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """P51. Waking falls back to polling with one warning."""
    through = bouncer.url(sa.make_url(postgres_migrated_url))
    inbox = Inbox()
    with open_queue(through) as queue, open_queue(through) as elsewhere:
        queue.subscribe(TOPIC, GROUP, inbox, **FAST)
        elsewhere.publish(*messages(20))
        inbox.wait(20)
    assert sum("listen" in record.getMessage() for record in caplog.records) == 1


# -- failover and lost connections ---------------------------------------------------------------


@contextmanager
def read_only(server: PostgresServer) -> Iterator[None]:
    """Have every session of a server refuse to write, as on a standby, until the end."""
    plain = sa.make_url(server.url()).set(drivername="postgresql")
    options = "-c default_transaction_read_only=off"
    with psycopg.connect(
        plain.render_as_string(hide_password=False), autocommit=True, options=options
    ) as admin:
        admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        admin.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
            admin.execute("SELECT pg_reload_conf()")


@pytest.mark.slow
def test_after_a_failover_and_back_work_goes_on_without_a_restart(
    crashable_postgres: PostgresServer,
) -> None:
    """P52. Sessions that live on, and refuse to write: nothing is lost, nothing stays stuck."""
    server = crashable_postgres
    url = server.url(server.create_database())
    migrate.upgrade(url)
    inbox = Inbox()
    refused = Message(TOPIC, id="refused")
    with open_queue(url) as queue:
        queue.subscribe(TOPIC, GROUP, inbox, **FAST)
        queue.publish(*messages(10))
        inbox.wait(10)
        eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
        with read_only(server):
            eventually(lambda: is_refused(url))
            with pytest.raises(StoreUnavailableError, match="read-only"):
                queue.publish(refused)
        eventually(lambda: not is_refused(url))
        queue.publish(refused)
        inbox.wait(11)
        eventually(lambda: queue.stats(TOPIC, GROUP) == Stats())
        eventually(lambda: queue.health().ok)
    assert inbox.attempts == [1] * 11


def is_refused(url: str) -> bool:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return bool(connection.exec_driver_sql("SHOW transaction_read_only").scalar() == "on")


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_consuming_outlives_the_loss_of_every_connection_again_and_again(
    url: sa.URL, postgres_migrated_url: str, admin: sa.Connection, driver: str
) -> None:
    """P44, P53. Also where the application is on the other driver."""
    pytest.importorskip(driver)
    engine = sa.create_engine(url.set(drivername=f"postgresql+{driver}"))
    inbox = Inbox()
    rounds, size = 8, 10
    with open_queue(engine) as queue, open_queue(postgres_migrated_url) as spared:
        queue.subscribe(TOPIC, GROUP, inbox, **FAST, lease_duration=1)
        for number in range(rounds):
            queue.publish(*messages(size, start=number * size, key=f"key {number % 3}"))
            inbox.wait(len(inbox.ids) + 1)  # it is in the midst of them
            assert admin.exec_driver_sql(f"SELECT count(pg_terminate_backend(pid)) {OURS}").scalar()
        eventually(lambda: spared.stats(TOPIC, GROUP) == Stats())
        eventually(lambda: queue.health().ok)
    engine.dispose()
    last = {delivery.id: delivery.attempt for delivery in inbox.deliveries}
    assert len(last) == rounds * size
    assert Counter(inbox.ids) == Counter(last)  # none but those that lost a lease ran again


class Silence:
    """A consumer whose every connection leads nowhere, while others reach the server."""

    def __init__(self, url: sa.URL, proxy: Proxy) -> None:
        self.came = threading.Semaphore(0)
        self.direct = open_queue(url)
        self.queue = open_queue(url.set(host="127.0.0.1", port=proxy.port), wake=False)
        self.queue.subscribe(TOPIC, GROUP, lambda _: self.came.release(), **FAST)
        self.direct.publish(*messages(1))
        assert self.came.acquire(timeout=DEADLINE)
        eventually(lambda: self.queue.health().subscriptions[0].held == 0)
        proxy.swallow()


@pytest.fixture
def silence(url: sa.URL) -> Iterator[Silence]:
    with Proxy(url.host or "127.0.0.1", url.port or 5432) as proxy:
        silence = Silence(url, proxy)
        yield silence
        silence.direct.close(timeout=5)
        silence.queue.close(timeout=0)  # it does not wait for the threads that are stuck


def test_health_tells_how_long_ago_the_server_answered(silence: Silence) -> None:
    """P53. However long that is by now."""
    eventually(lambda: since_claim(silence.queue) > timedelta(seconds=0.5))


def since_claim(queue: StoreQueue) -> timedelta:
    (health,) = queue.health().subscriptions
    assert health.since_claim is not None
    return health.since_claim


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqlite", "postgres"])
def test_health_tells_of_a_subscription_that_is_stuck_in_a_statement(
    request: pytest.FixtureRequest, own_queue: OwnQueue, name: str
) -> None:
    """P53. The other threads of the queue are well, and reach the server."""
    url = sa.make_url(request.getfixturevalue(f"{name}_migrated_url"))
    store = PausingStore(open_sql_store(url))
    queue = own_queue(store)
    with store.pause_on("claim") as pause:
        queue.subscribe(TOPIC, GROUP, Inbox(), **FAST)
        queue.publish(*messages(1))
        pause.wait_reached()
        later = time.monotonic() + 1.5
        eventually(lambda: time.monotonic() > later)
        (health,) = queue.health().subscriptions
        assert health.since_claim is None or health.since_claim > timedelta(seconds=1)


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True, reason="a statement without an answer is waited for, as long as TCP is content"
)
def test_a_claim_that_is_never_answered_does_not_stop_consuming(silence: Silence) -> None:
    """P53. It is given up, and a new connection finds the server."""
    silence.direct.publish(*messages(1, start=1))
    assert silence.came.acquire(timeout=4)


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True, reason="the thread that would cancel the run is the one that waits for the answer"
)
def test_a_heartbeat_that_is_never_answered_loses_the_lease_at_its_confirmed_end(
    backend: Backend, open_queue: OpenQueue
) -> None:
    """P12, P53. Somebody else may be at work by then: the run must be told."""
    store = PausingStore(backend.open())
    queue = open_queue(store)
    told = threading.Event()

    def handle(delivery: Delivery) -> None:
        if delivery.cancelled.wait(3 * backend.lease):
            told.set()

    inbox = Inbox(then=handle)
    with store.pause_on("extend") as pause:
        queue.subscribe(TOPIC, GROUP, inbox, **FAST, lease_duration=backend.lease, concurrency=1)
        queue.publish(*messages(1))
        pause.wait_reached()
        assert told.wait(3 * backend.lease)


# -- the application's connections -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.processes
def test_a_flask_handler_gets_over_a_connection_that_died_and_a_transaction_that_failed(
    postgres_url: str, tmp_path: Path
) -> None:
    """P54. As the example shows it: a transaction for each delivery. (Django: tests/examples.)"""
    folder = copied("05_flask", tmp_path)
    run(sys.executable, "-m", "flask", "--app", "app", "init-db", cwd=folder,
        DATABASE_URL=postgres_url)  # fmt: skip
    script = """
        import sqlalchemy as sa
        from queue_lib import Delivery
        from app import Order, Session, app, engine, queue, ship

        number = app.test_client().post("/orders", json={"item": "tea"}).json["id"]
        delivery = Delivery("orders", str(number).encode(), delivery_id="d", group="shipping")
        others = sa.create_engine(engine.url)
        with others.connect() as admin:
            admin.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        for payload in (b"no number", b"-1", delivery.payload):
            try:
                ship(Delivery("orders", payload, delivery_id="d", group="shipping"))
            except Exception as error:
                print(type(error).__name__)
        ship(delivery)
        with Session() as session:
            assert session.get_one(Order, number).shipped_by is not None
        queue.close()
    """
    failures = run(sys.executable, "-c", dedent(script), cwd=folder, DATABASE_URL=postgres_url)
    assert len(failures.split()) >= 2  # and yet the last one passed
