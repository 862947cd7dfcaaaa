"""Transactions: the caller's, ours under a stricter default, publishes too large for one call."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from queue_lib.errors import StoreError, UnsupportedError
from queue_lib.stores.schema import build_tables
from tests.postgres.conftest import create_tables
from tests.postgres.lab import Lab, message


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
    lab.do_everything(lab.store())
    with lab.transaction() as publisher:  # the publish is the first call of its store
        lab.store().append_in(publisher, [message("next", "k9")])
        behind = lab.start_behind(publisher, lambda: lab.store().append([message("last", "k9")]))
        publisher.commit()
    behind.result()
    lab.store().append(LARGE)
    assert lab.rows("SELECT state FROM {q}deliveries WHERE key = 'k9' ORDER BY seq") == [(0,), (2,)]
    lab.close()
    host.dispose()


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
