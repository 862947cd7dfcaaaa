"""D. Locks, deadlocks, isolation, and what a failed statement leaves behind."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
import sqlalchemy as sa

from queue_lib import (
    Claimed,
    ClaimRequest,
    Delivery,
    Message,
    ProcessLocker,
    PurgePolicy,
    StartFrom,
    Stats,
    Store,
    StoreError,
    StoreUnavailableError,
    open_queue,
)
from queue_lib.stores.sql.dialect import Database
from queue_lib.stores.sql.open import open_sql_store
from queue_lib.testing.clock import ManualClock
from tests.engine.harness import FAST, GROUP, TOPIC, eventually
from tests.pain.failing import FailingDatabase, Faults
from tests.sqlite.support import write_lock

MINUTE = timedelta(minutes=1)


# -- isolation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["engine", "database"])
def test_a_host_that_is_serializable_changes_nothing(
    postgres_migrated_url: str, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """P43. Several instances on keys: the same results, no failed outcome, no alarm in the log."""
    strict: dict[str, Any] = {"isolation_level": "SERIALIZABLE"} if where == "engine" else {}
    engine = sa.create_engine(postgres_migrated_url, **strict)
    if where == "database":
        level = f'ALTER DATABASE "{engine.url.database}" SET default_transaction_isolation'
        with engine.begin() as connection:
            connection.exec_driver_sql(f"{level} = 'serializable'")
        engine.dispose()
    runs: defaultdict[str, list[int]] = defaultdict(list)

    def handle(delivery: Delivery) -> None:
        runs[delivery.key].append(int(delivery.payload))  # one of a key at a time

    caplog.set_level(logging.WARNING, "queue_lib")
    keys = [f"key {number}" for number in range(8)]
    with ExitStack() as stack:
        queues = [stack.enter_context(open_queue(engine)) for _ in range(3)]
        for queue in queues:
            queue.subscribe(TOPIC, GROUP, handle, **FAST)
        for number in range(20):
            batch = [Message(TOPIC, str(number).encode(), key=key) for key in keys]
            queues[number % 3].publish(*batch)
        eventually(lambda: queues[0].stats(TOPIC, GROUP) == Stats())
    engine.dispose()
    assert runs == {key: list(range(20)) for key in keys}
    assert [r.getMessage() for r in caplog.records if r.name.startswith("queue_lib")] == []


# -- statements that fail ------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[Store, str, list[Claimed]], object]] = {
    "ensure_group": lambda store, topic, _: store.ensure_group(topic, "late", StartFrom.EARLIEST),
    "append": lambda store, topic, _: store.append([message(topic, 8), message(topic, 9, "k")]),
    "claim": lambda store, topic, _: claim(store, topic),
    "ack": lambda store, _, held: store.ack(held),
    "retry": lambda store, _, held: store.retry(held[0], MINUTE, "why"),
    "kill": lambda store, _, held: store.kill(held[1], "why"),
    "extend": lambda store, _, held: store.extend(held, MINUTE),
    "release": lambda store, _, held: store.release(held),
    "purge": lambda store, *_: store.purge(PurgePolicy(timedelta(0), timedelta(0)), 100),
    "stats": lambda store, topic, _: store.stats(topic, GROUP),
    "ping": lambda store, *_: store.ping(),
}


def message(topic: str, number: int, key: str = "") -> Message:
    return Message(topic, b"x", key, f"{topic}-{number}", published_at=datetime.now(UTC))


def claim(store: Store, topic: str) -> list[Claimed]:
    return store.claim(ClaimRequest(topic, GROUP, "test", 2, MINUTE))


def prepare(store: Store, topic: str) -> list[Claimed]:
    """Put four messages on a topic of its own, and hold two of them."""
    store.ensure_group(topic, GROUP, StartFrom.LATEST)
    store.append([message(topic, number, "k" * (number % 2)) for number in range(4)])
    return claim(store, topic)


def counts(store: Store, topic: str) -> list[Stats]:
    return [store.stats(topic, group) for group in (GROUP, "late")]


@dataclass(frozen=True)
class Patient:
    """A store whose statements fail on cue."""

    store: Store
    faults: Faults
    check_at_rest: Callable[[], None]
    """Checks that it has no connection in use, and no lock."""


def sql_patient(url: sa.URL, broken: str) -> Patient:
    faults = Faults()
    store = open_sql_store(url, wake=False)  # nor a thread that takes a connection, too
    database: Any = store._database
    store._database = cast("Database", FailingDatabase(database, faults, broken))

    def check() -> None:
        if url.get_backend_name() == "sqlite":
            with write_lock(url):
                assert database._reader.pool.checkedout() == 0
        else:
            assert database._pool.checkedout() == 0

    return Patient(store, faults, check)


def clickhouse_patient(url: sa.URL, monkeypatch: pytest.MonkeyPatch) -> Patient:
    from queue_lib.stores.clickhouse import database as module
    from queue_lib.stores.clickhouse.open import open_clickhouse_store

    faults = Faults()
    clock = ManualClock(datetime.now(UTC))  # or it asks for the server's now and then
    store = open_clickhouse_store(url, ProcessLocker(), clock=clock)

    def fail() -> None:
        raise StoreUnavailableError("made to fail")

    for name in ("select", "insert", "command"):
        original = getattr(module.Database, name)

        def call(self: Any, *given: Any, original: Any = original) -> Any:
            return faults.statement(lambda: original(self, *given), fail)

        monkeypatch.setattr(module.Database, name, call)
    pool: Any = store._database._engine.pool

    def check() -> None:
        assert pool.checkedout() == 0

    return Patient(store, faults, check)


BROKEN = {
    "sqlite": "select nonsense",
    "postgres": "SELECT 1 / 0",
    "postgres, cut off": "SELECT pg_terminate_backend(pg_backend_pid())",
    "clickhouse": "",
}


@pytest.fixture(params=BROKEN)
def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Patient]:
    name: str = request.param
    url = sa.make_url(request.getfixturevalue(f"{name.partition(',')[0]}_migrated_url"))
    if name == "clickhouse":
        patient = clickhouse_patient(url, monkeypatch)
    else:
        patient = sql_patient(url, BROKEN[name])
    yield patient
    patient.store.close()


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_after_any_statement_that_failed_the_same_call_works(
    patient: Patient, operation: str
) -> None:
    """P44, P46. Not applied, or applied and not answered: both ways it can be called again."""
    store, faults, call = patient.store, patient.faults, OPERATIONS[operation]
    held = prepare(store, "sound")
    statements = faults.count(lambda: call(store, "sound", held))
    expected = counts(store, "sound")
    for number in range(statements):
        for applied in (False, True):
            topic = f"{number}-{applied}"
            held = prepare(store, topic)
            with faults.at(number, applied=applied), pytest.raises(StoreError):
                call(store, topic, held)
            patient.check_at_rest()
            call(store, topic, held)
            patient.check_at_rest()
            assert counts(store, topic) == expected
