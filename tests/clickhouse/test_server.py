"""The server restarts, crashes, and refuses: nothing is lost, and the errors are ours."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

if not os.environ.get("CI"):
    pytest.importorskip("clickhouse_sqlalchemy", reason="the extra clickhouse is not installed")

from clickhouse_driver.errors import ServerException

from queue_lib import migrate
from queue_lib.errors import SchemaError, StoreError, StoreUnavailableError
from queue_lib.options import StartFrom
from queue_lib.stores.base import PurgePolicy, Stats
from queue_lib.stores.clickhouse.database import Database
from queue_lib.stores.clickhouse.errors import TooManyPartsError, translate
from tests.clickhouse.child import GROUP, TOPIC, claim, message
from tests.clickhouse_server import ClickHouseServer

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "publish": lambda store, _: store.append([message("new")]),
    "register": lambda store, _: store.ensure_group(TOPIC, "other", StartFrom.EARLIEST),
    "claim": lambda store, _: claim(store, 1),
    "ack": lambda store, held: store.ack(held),
    "retry": lambda store, held: store.retry(held[0], timedelta(seconds=60), "why"),
    "kill": lambda store, held: store.kill(held[0], "why"),
    "extend": lambda store, held: store.extend(held, timedelta(seconds=60)),
    "release": lambda store, held: store.release(held),
    "purge": lambda store, _: store.purge(PurgePolicy(timedelta(0), timedelta(0)), 100),
}
AFTERWARDS = {
    "publish": Stats(pending=4, leased=1),
    "claim": Stats(pending=2, leased=2),
    "ack": Stats(pending=3),
    "retry": Stats(pending=4),
    "kill": Stats(pending=3, dead=1),
    "release": Stats(pending=4),
}


@pytest.fixture(scope="module")
def own_server() -> Any:
    from tests.clickhouse_server import _new_server

    with _new_server() as server:
        yield server


def prepare(server: ClickHouseServer, open_store: Any, driver: str) -> tuple[Any, list[Any]]:
    url = server.url(server.create_database(), driver)
    migrate.upgrade(url)
    store = open_store(url)
    store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    store.append([message(name) for name in "abcd"])
    return store, claim(store, 1)


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["native", "http"])
def test_after_a_restart_every_operation_goes_on(own_server, open_store, driver):
    """The fence table is empty: the first write is refused, and the store comes in again."""
    prepared = {name: prepare(own_server, open_store, driver) for name in OPERATIONS}
    own_server.restart()
    for name, (store, held) in prepared.items():
        OPERATIONS[name](store, held)
        assert store.stats(TOPIC, GROUP) == AFTERWARDS.get(name, Stats(pending=3, leased=1)), name


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("driver", ["native", "http"])
def test_a_crash_in_the_middle_of_an_operation(own_server, open_store, driver, when, monkeypatch):
    """Before its write nothing happened; behind it, all of it did. Doing it again is safe."""
    for name in ("publish", "ack", "claim"):
        store, held = prepare(own_server, open_store, driver)
        original = Database.insert

        def insert(self: Database, table: str, *rest: Any, original: Any = original) -> None:
            monkeypatch.setattr(Database, "insert", original)
            if when == "after":
                original(self, table, *rest)
            own_server.kill()
            if when == "before":
                original(self, table, *rest)
            raise StoreUnavailableError("the answer was lost")

        monkeypatch.setattr(Database, "insert", insert)
        with pytest.raises(StoreUnavailableError):
            OPERATIONS[name](store, held)
        own_server.start()
        OPERATIONS[name](store, held)
        expected = AFTERWARDS[name]
        if name == "claim" and when == "after":  # the first one's answer was lost; it runs out
            expected = Stats(pending=1, leased=3)
        assert store.stats(TOPIC, GROUP) == expected, name


def test_a_server_that_is_away_is_unavailable(own_server, open_store):
    for driver in ("native", "http"):
        store, held = prepare(own_server, open_store, driver)
        own_server.kill()
        for operate in (*OPERATIONS.values(), lambda store, _: store.ping()):
            with pytest.raises(StoreUnavailableError) as caught:
                operate(store, held)
            assert caught.value.__cause__ is not None
        own_server.start()
        store.ping()
        assert store.ack(held) == [held[0].delivery_id]


@pytest.mark.parametrize("driver", ["native", "http"])
def test_missing_tables_are_named(clickhouse_server, clickhouse_database, open_store, driver):
    store = open_store(clickhouse_server.url(clickhouse_database, driver))
    for operate in (lambda: store.ping(), lambda: store.append([message("a")])):
        with pytest.raises(SchemaError, match="python -m queue_lib migrate"):
            operate()


def test_too_many_parts_is_waited_for_outside_the_lock(store, monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr("queue_lib.stores.clickhouse.turns.time.sleep", pauses.append)
    original, failures = Database.insert, [252] * 3

    def insert(self: Database, *rest: Any) -> None:
        if failures:
            raise translate(ServerException("Too many parts", failures.pop()))
        original(self, *rest)

    monkeypatch.setattr(Database, "insert", insert)
    store.append([message("a")])
    assert len(pauses) == 3
    assert 0.07 < pauses[0] < 0.13
    assert pauses[0] < pauses[1] < pauses[2]
    failures += [252] * 100
    with pytest.raises(TooManyPartsError):
        store.append([message("b")])
    assert sum(pauses) < 10


@pytest.mark.parametrize(
    ("code", "kind"),
    [(60, SchemaError), (209, StoreUnavailableError), (210, StoreUnavailableError),
     (469, StoreUnavailableError), (62, StoreError)],
)  # fmt: skip
def test_codes_decide_on_both_drivers(code, kind):
    from clickhouse_sqlalchemy.drivers.http.exceptions import HTTPException
    from clickhouse_sqlalchemy.exceptions import DatabaseException

    over_http = HTTPException(f"Code: {code}. DB::Exception: Code: 999. (X)")
    over_http.code = 500
    for error in (ServerException("text", code), DatabaseException(over_http)):
        assert isinstance(translate(error), kind)
        assert isinstance(translate(error), StoreUnavailableError) == (
            kind is StoreUnavailableError
        )
    assert isinstance(translate(EOFError()), StoreUnavailableError)
    assert isinstance(translate(ConnectionResetError("reset")), StoreUnavailableError)
