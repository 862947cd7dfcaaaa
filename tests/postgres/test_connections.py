"""Connections of our own: beside the host's, without state, and found again after a fault."""

from __future__ import annotations

import os
import warnings
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from queue_lib.errors import SchemaError, StoreError, StoreUnavailableError, UnsupportedError
from queue_lib.stores.base import PurgePolicy
from queue_lib.stores.schema import build_tables
from queue_lib.stores.sql.postgres import (
    PostgresDatabase,
    PostgresStatements,
    drop_functions,
    install_functions,
)
from queue_lib.stores.sql.store import SqlStore
from tests.postgres.conftest import create_tables
from tests.postgres.lab import GROUP, LEASE, TOPIC, Lab, ids, message

OURS = "FROM pg_stat_activity WHERE application_name = 'ours'"


@pytest.fixture
def ours(lab: Lab) -> PostgresDatabase:
    """A database of ours whose connections can be told from the host's."""
    url = lab.host.url.update_query_dict({"application_name": "ours"})
    return lab.database(url, wake=False)


def do_everything(lab: Lab, store: SqlStore) -> None:
    """Call each operation at least once; leaves nothing that is due."""
    lab.register(store)
    store.append([message("a", "k"), message("b", "k"), message("c"), message("d")])
    claims = lab.claim(store, cap=10)
    assert ids(claims) == ["a", "c", "d"]
    assert len(store.extend(claims, LEASE)) == 3
    store.release(claims[:1])
    assert store.retry(claims[1], LEASE, "x")
    assert store.kill(claims[2], "x")
    while claims := lab.claim(store):
        assert len(store.ack(claims)) == len(claims)
    store.purge(PurgePolicy(LEASE, LEASE), 10)
    store.stats(TOPIC, GROUP)
    store.ping()


# -- one call, one statement, one transaction -------------------------------------------------


def test_an_operation_is_one_statement(lab: Lab, ours: PostgresDatabase) -> None:
    store = lab.consuming(target=ours)
    store.append([message("a", "k"), message("b")])
    store.ack(lab.claim(store))
    statements: list[str] = []

    @sa.event.listens_for(ours._engine, "before_cursor_execute")
    def note(*event: Any) -> None:
        statements.append(event[2])

    def count(expected: int) -> None:
        assert len(statements) == expected, statements
        statements.clear()

    store.append([message(f"m{number}", f"k{number}") for number in range(5)])
    count(1)
    claims = lab.claim(store, cap=100)
    count(1)
    store.extend(claims, LEASE)
    count(1)
    store.retry(claims[0], LEASE, "x")
    count(1)
    store.kill(claims[1], "x")
    count(1)
    store.release(claims[2:3])
    count(1)
    store.ack(claims[3:])
    count(1)
    store.stats(TOPIC, GROUP)
    count(1)
    store.ping()
    count(1)
    store.purge(PurgePolicy(LEASE, LEASE), 10)
    count(2)


def test_connections_keep_no_state_and_no_transaction(lab: Lab, ours: PostgresDatabase) -> None:
    store = lab.consuming(target=ours)
    for number in range(20):  # a driver that prepares does so at the fifth
        store.append([message(f"m{number}", "k")])
        store.ack(lab.claim(store))
    assert lab.rows(f"SELECT DISTINCT state {OURS}") == [("idle",)]
    assert lab.ask(f"SELECT count(*) FROM pg_locks WHERE pid IN (SELECT pid {OURS})") == 0
    with ours._engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        assert driver.autocommit is True
        assert connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").one() == (
            0,
        )


# -- beside the host --------------------------------------------------------------------------


def test_the_hosts_pool_is_not_ours(lab: Lab) -> None:
    """A heartbeat must not wait for a connection that a handler holds."""
    host = sa.create_engine(lab.host.url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    with host.connect():
        do_everything(lab, lab.store(host))
    host.dispose()


def test_the_hosts_way_to_connect_is_ours(lab: Lab) -> None:
    """Its arguments, its creator and its connect hooks, whatever they leave behind."""
    calls: list[str] = []

    def creator() -> psycopg.Connection[Any]:
        calls.append("creator")
        url = lab.host.url.set(drivername="postgresql").render_as_string(hide_password=False)
        return psycopg.connect(url, application_name="made by the host")

    host = sa.create_engine("postgresql+psycopg://nowhere.invalid/none", creator=creator)

    @sa.event.listens_for(host, "connect")
    def hook(connection: Any, _record: object) -> None:
        connection.execute("SET search_path TO pg_catalog")  # begins a transaction, if it can
        calls.append("hook")

    database = lab.database(host, wake=False)
    store = lab.store(database)
    do_everything(lab, store)
    assert calls == ["creator", "hook"]
    with database._engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW search_path").scalar() == "pg_catalog"
        assert connection.exec_driver_sql("SHOW application_name").scalar() == "made by the host"
        driver: Any = connection.connection.driver_connection
        assert (driver.autocommit, driver.prepare_threshold) == (True, None)
    store.close()
    host.dispose()


def test_a_host_on_psycopg2(lab: Lab) -> None:
    pytest.importorskip("psycopg2")
    host = sa.create_engine(lab.host.url.set(drivername="postgresql+psycopg2"))
    store = lab.store(host)
    do_everything(lab, store)
    messages = [
        message("x", "k1", headers={"a": "ä'\\%s"}, payload=bytes(range(256))),
        message("y", topic="other"),
        message("z", payload=b"", priority=-5),
    ]
    with host.connect() as connection:
        store.append_in(connection, messages)
        assert lab.claim(store) == []
        connection.commit()
    claims = lab.claim(store)
    assert [claim.message for claim in claims] == [messages[2], messages[0]]
    host.dispose()


def test_what_cannot_be_published_through(lab: Lab) -> None:
    store = lab.store()
    autocommit = lab.host.execution_options(isolation_level="AUTOCOMMIT")
    with autocommit.connect() as connection, pytest.raises(UnsupportedError, match="autocommit"):
        store.append_in(connection, [message("a")])
    elsewhere = sa.create_engine("sqlite://")
    with elsewhere.connect() as connection, pytest.raises(UnsupportedError, match="sqlite"):
        store.append_in(connection, [message("a")])
    elsewhere.dispose()


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_lib.stores.sql.postgres.statements._BATCH_BYTES", 1000)


LARGE = [message(f"m{n:02}", f"k{n % 3}", payload=bytes(400), topic=f"t{n % 2}") for n in range(20)]


# -- isolation --------------------------------------------------------------------------------


@pytest.fixture(params=["serializable", "repeatable read"])
def strict_url(request: pytest.FixtureRequest, postgres_url: str) -> str:
    """A database whose default isolation is stricter than READ COMMITTED."""
    engine = sa.create_engine(postgres_url)
    create_tables(engine, build_tables())
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f'ALTER DATABASE "{engine.url.database}" '
            f"SET default_transaction_isolation = '{request.param}'"
        )
    engine.dispose()
    return postgres_url


@pytest.mark.usefixtures("small_batches")
def test_a_stricter_default_isolation_is_overruled(strict_url: str) -> None:
    host = sa.create_engine(strict_url)
    lab = Lab(host, build_tables())
    do_everything(lab, lab.store())
    with lab.transaction() as publisher:  # the publish is the first call of its store
        lab.store().append_in(publisher, [message("next", "k9")])
        behind = lab.start_behind(publisher, lambda: lab.store().append([message("last", "k9")]))
        publisher.commit()
    behind.result()
    lab.store().append(LARGE)
    assert lab.rows("SELECT state FROM {q}deliveries WHERE key = 'k9' ORDER BY seq") == [(0,), (2,)]
    lab.close()
    host.dispose()


# -- large publishes --------------------------------------------------------------------------


@pytest.mark.usefixtures("small_batches")
def test_a_large_publish_is_one_transaction(lab: Lab) -> None:
    store = lab.store()
    store.append(LARGE)
    found = lab.rows("SELECT id, xmin FROM {q}messages ORDER BY seq")
    assert [id for id, _ in found] == [each.id for each in LARGE]
    assert len({xmin for _, xmin in found}) == 1


@pytest.mark.usefixtures("small_batches")
def test_a_large_publish_that_fails_leaves_nothing(lab: Lab) -> None:
    store = lab.store()
    with pytest.raises(StoreError):
        store.append([*LARGE, message("bad", priority=1 << 40)])
    assert lab.ask("SELECT count(*) FROM {q}messages") == 0
    store.append(LARGE)  # the connection is as good as before
    assert lab.ask("SELECT count(*) FROM {q}messages") == len(LARGE)


@pytest.mark.usefixtures("small_batches")
def test_a_large_publish_takes_all_its_locks_first(lab: Lab) -> None:
    store = lab.store()
    with lab.transaction() as blocker:
        store.append_in(blocker, [message("x", "k2", topic="t1")])
        waiting = lab.start_behind(blocker, lambda: store.append(LARGE))
        assert lab.ask("SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid'") > 0
        blocker.rollback()
    waiting.result()
    assert lab.ask("SELECT count(*) FROM {q}messages") == len(LARGE)


@pytest.mark.usefixtures("small_batches")
def test_a_large_publish_in_the_callers_transaction(lab: Lab) -> None:
    store = lab.store()
    with lab.transaction() as mine:
        store.append_in(mine, LARGE)
        assert lab.ask("SELECT count(*) FROM {q}messages") == 0
        mine.commit()
    assert lab.ask("SELECT count(*) FROM {q}messages") == len(LARGE)
    with lab.transaction("REPEATABLE READ") as strict:
        with pytest.raises(UnsupportedError):
            store.append_in(strict, [message("unkeyed", payload=bytes(900)), *LARGE])
        strict.commit()
    assert lab.ask("SELECT count(*) FROM {q}messages") == len(LARGE)


# -- faults -----------------------------------------------------------------------------------


def test_connections_that_the_server_cut_are_replaced(lab: Lab, ours: PostgresDatabase) -> None:
    store = lab.consuming(target=ours)
    lab.do(f"SELECT pg_terminate_backend(pid) {OURS}")
    with pytest.raises(StoreUnavailableError):
        store.ping()
    do_everything(lab, store)


def test_a_pool_that_leads_to_a_standby_is_renewed(postgres_url: str) -> None:
    """Each of its connections would be read-only for ever; the address leads to the new primary."""
    host = sa.create_engine(postgres_url)
    create_tables(host, build_tables())
    lab = Lab(host, build_tables())
    alter = f'ALTER DATABASE "{host.url.database}"'
    lab.do(f"{alter} SET default_transaction_read_only = on")
    store = lab.store()
    with pytest.raises(StoreUnavailableError, match="read-only"):
        store.append([message("a")])
    lab.do(f"{alter} RESET default_transaction_read_only")
    do_everything(lab, store)
    lab.close()
    host.dispose()


def test_a_server_out_of_reach_is_unavailable(lab: Lab) -> None:
    store = lab.store(sa.make_url("postgresql://nobody@127.0.0.1:1/none"))
    with pytest.raises(StoreUnavailableError):
        store.ping()


class _FromTheServer(Exception):  # noqa: N818 - stands for a driver's error
    def __init__(self, **codes: str) -> None:
        super().__init__("text that nobody reads")
        self.__dict__.update(codes)


@pytest.mark.parametrize(
    ("codes", "meaning"),
    [
        ({"sqlstate": "08006"}, StoreUnavailableError),
        ({"sqlstate": "40001"}, StoreUnavailableError),
        ({"sqlstate": "40P01"}, StoreUnavailableError),
        ({"pgcode": "40P01"}, StoreUnavailableError),
        ({"sqlstate": "53300"}, StoreUnavailableError),
        ({"sqlstate": "57014"}, StoreUnavailableError),
        ({"sqlstate": "57P03"}, StoreUnavailableError),
        ({"sqlstate": "58030"}, StoreUnavailableError),
        ({"sqlstate": "55P03"}, StoreUnavailableError),
        ({"sqlstate": "25006"}, StoreUnavailableError),
        ({"sqlstate": "42P01"}, SchemaError),
        ({"sqlstate": "42883"}, SchemaError),
        ({"sqlstate": "42703"}, SchemaError),
        ({"sqlstate": "3F000"}, SchemaError),
        ({"sqlstate": "42501"}, StoreError),
        ({"sqlstate": "55006"}, StoreError),
        ({"sqlstate": "23505"}, StoreError),
        ({}, StoreError),
    ],
)
def test_the_meaning_of_an_error_is_in_its_code(
    lab: Lab, codes: dict[str, str], meaning: type[Exception]
) -> None:
    error = sa.exc.DBAPIError("SELECT 1", None, _FromTheServer(**codes))
    assert lab.database().classify(error) is meaning


@pytest.mark.parametrize("error", [sa.exc.TimeoutError(), OSError()])
def test_no_connection_to_be_had_is_unavailable(lab: Lab, error: Exception) -> None:
    assert lab.database().classify(error) is StoreUnavailableError


def test_a_payload_is_in_no_error(lab: Lab) -> None:
    store = lab.store()
    with pytest.raises(StoreError) as caught:
        store.append([message("a", payload=b"secret", priority=1 << 40)])
    seen: BaseException | None = caught.value
    while seen is not None:
        assert "secret" not in f"{seen!r} {seen}"
        seen = seen.__cause__


# -- the functions ----------------------------------------------------------------------------


def test_missing_functions_are_a_schema_error(lab: Lab) -> None:
    store = lab.store()
    store.ping()
    with lab.host.begin() as connection:
        drop_functions(connection, lab.tables)
    with pytest.raises(SchemaError, match="migrate"):
        store.ping()
    with pytest.raises(SchemaError):
        store.append([message("a")])
    with lab.host.begin() as connection:
        install_functions(connection, lab.tables)
        install_functions(connection, lab.tables)
    store.ping()


def test_functions_stay_in_their_schema(postgres_url: str) -> None:
    """Installed by the search path; called from a session with another one."""
    host = sa.create_engine(postgres_url)
    with host.begin() as connection:
        connection.exec_driver_sql("""CREATE SCHEMA "it's my-""Schema" """)
        connection.exec_driver_sql("""SET LOCAL search_path TO "it's my-""Schema" """)
        build_tables().metadata.create_all(connection)
        install_functions(connection, build_tables())
    url = host.url.update_query_dict({"options": """-csearch_path="it's\\ my-""Schema",public"""})
    lab = Lab(sa.create_engine(url), build_tables())
    do_everything(lab, lab.store(url))
    with lab.transaction() as connection:
        connection.exec_driver_sql("SET LOCAL search_path TO pg_temp")
        qualified = """ "it's my-""Schema".queue_append_v1 """
        connection.exec_driver_sql(
            f"SELECT {qualified}('{{t}}', null, '{{i}}', '{{k}}', '{{x}}', null, '{{0}}', '{{0}}', "
            "'{0}', null, '')"
        )
        connection.commit()
    assert lab.ask("SELECT id FROM {q}messages WHERE id = 'i'") == "i"
    lab.close()
    lab.host.dispose()
    host.dispose()


def test_a_search_path_without_a_schema(postgres_url: str) -> None:
    host = sa.create_engine(postgres_url)
    with host.begin() as connection:
        connection.exec_driver_sql("SET LOCAL search_path TO ''")
        with pytest.raises(UnsupportedError, match="search path"):
            install_functions(connection, build_tables())
    host.dispose()


# -- forks ------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_forked_child_has_connections_of_its_own(lab: Lab) -> None:
    store = lab.consuming()
    store.append([message("before")])
    instance = store._database.instance
    store.before_fork()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads: that is what is tested
        child = os.fork()
    if child == 0:
        code = 1
        try:
            store.after_fork(child=True)
            store.append([message("child")])
            if store._database.instance != instance:
                code = 0
        finally:
            os._exit(code)
    store.after_fork(child=False)
    store.append([message("parent")])
    assert os.waitpid(child, 0) == (child, 0)
    store.append([message("after")])
    assert sorted(ids(lab.claim(store))) == ["after", "before", "child", "parent"]
    assert store._database.instance == instance


def test_closing_twice_is_fine(lab: Lab) -> None:
    database = lab.database()
    store = SqlStore(database, PostgresStatements(lab.tables))
    lab.register(store)
    store.append([message("a")])
    store.close()
    store.close()
    database.published(["orders"])  # a late publisher: nothing to wake any more
