"""Connections of our own: beside the host's, without state, and found again after a fault."""

from __future__ import annotations

import os
import warnings
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from queue_lib.errors import SchemaError, StoreError, StoreUnavailableError
from queue_lib.stores.base import PurgePolicy
from queue_lib.stores.schema import build_tables
from queue_lib.stores.sql.postgres import (
    PostgresDatabase,
    PostgresStatements,
)
from queue_lib.stores.sql.store import SqlStore
from queue_lib.testing.statements import RecordingDatabase
from tests.postgres.conftest import create_tables
from tests.postgres.lab import GROUP, LEASE, TOPIC, Lab, ids, message

OURS = "FROM pg_stat_activity WHERE application_name = 'ours'"


@pytest.fixture
def ours(lab: Lab) -> PostgresDatabase:
    """A database of ours whose connections can be told from the host's."""
    url = lab.host.url.update_query_dict({"application_name": "ours"})
    return lab.database(url, wake=False)


# -- one call, one statement, one transaction -------------------------------------------------


def test_an_operation_is_one_statement(lab: Lab, ours: PostgresDatabase) -> None:
    recording = RecordingDatabase(ours)
    store = lab.consuming(target=recording)
    store.append([message("a", "k"), message("b")])
    store.ack(lab.claim(store))
    recording.statements.clear()

    def count(expected: int) -> None:
        assert len(recording.statements) == expected, recording.statements
        recording.statements.clear()

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
    prepared = "SELECT count(*) FROM pg_prepared_statements"
    driver: Any = ours.read(lambda connection: connection)
    assert driver.autocommit is True
    assert driver.execute(prepared).fetchone() == (0,)


# -- beside the host --------------------------------------------------------------------------


def test_the_hosts_pool_is_not_ours(lab: Lab) -> None:
    """A heartbeat must not wait for a connection that a handler holds."""
    host = sa.create_engine(lab.host.url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    with host.connect():
        lab.do_everything(lab.store(host))
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
    lab.do_everything(store)
    assert calls == ["creator", "hook"]
    driver: Any = database.read(lambda connection: connection)
    assert driver.execute("SHOW search_path").fetchone() == ("pg_catalog",)
    assert driver.execute("SHOW application_name").fetchone() == ("made by the host",)
    assert (driver.autocommit, driver.prepare_threshold) == (True, None)
    store.close()
    host.dispose()


def test_a_host_on_psycopg2(lab: Lab) -> None:
    pytest.importorskip("psycopg2")
    host = sa.create_engine(lab.host.url.set(drivername="postgresql+psycopg2"))
    store = lab.store(host)
    lab.do_everything(store)
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


# -- faults -----------------------------------------------------------------------------------


def test_connections_that_the_server_cut_are_replaced(lab: Lab, ours: PostgresDatabase) -> None:
    store = lab.consuming(target=ours)
    lab.do(f"SELECT pg_terminate_backend(pid) {OURS}")
    with pytest.raises(StoreUnavailableError):
        store.ping()
    lab.do_everything(store)


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
    lab.do_everything(store)
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


# -- forks ------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_forked_child_has_connections_of_its_own(lab: Lab) -> None:
    database = lab.database()
    store = lab.consuming(target=database)
    store.append([message("before")])
    instance = database.instance
    store.before_fork()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads: that is what is tested
        child = os.fork()
    if child == 0:
        code = 1
        try:
            store.after_fork(child=True)
            store.append([message("child")])
            if database.instance != instance:
                code = 0
        finally:
            os._exit(code)
    store.after_fork(child=False)
    store.append([message("parent")])
    assert os.waitpid(child, 0) == (child, 0)
    store.append([message("after")])
    assert sorted(ids(lab.claim(store))) == ["after", "before", "child", "parent"]
    assert database.instance == instance


def test_closing_twice_is_fine(lab: Lab) -> None:
    database = lab.database()
    store = SqlStore(database, PostgresStatements(lab.tables))
    lab.register(store)
    store.append([message("a")])
    store.close()
    store.close()
    database.published(["orders"])  # a late publisher: nothing to wake any more
