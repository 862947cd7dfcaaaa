"""The options of `open_queue` and `Dependencies`: checked alike on every store, before anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from queue_lib import (
    Config,
    Dependencies,
    InvalidOptionsError,
    ProcessLocker,
    QueueError,
    UnsupportedError,
    new_queue,
    open_queue,
)
from queue_lib.registry import open_database_store

POSTGRES = "postgresql://u@127.0.0.1:1/d"
TARGETS = ["memory://", "sqlite:///opened.db", POSTGRES]

each_target = pytest.mark.parametrize("target", TARGETS)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(kind: type[QueueError], call: Callable[[], object]) -> str:
    with pytest.raises(QueueError) as caught:
        call()
    assert type(caught.value) is kind
    return str(caught.value)


@each_target
@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("migrate", "yes", "migrate 'yes': must be true or false"),
        ("migrate", None, "migrate None: must be true or false"),
        ("migrate", 1, "migrate 1: must be true or false"),
        ("wake", "no", "wake 'no': must be true or false"),
        ("wake", None, "wake None: must be true or false"),
        ("locker", 5, "locker 5: must be a DistributedLocker"),
        ("locker", False, "locker False: must be a DistributedLocker"),
        ("locker", "redis://h", "locker 'redis://h': must be a DistributedLocker"),
        (
            "locker",
            ProcessLocker,
            "locker <class 'queue_lib.locks.ProcessLocker'>: must be a DistributedLocker",
        ),
        ("schema", "", "schema '': must be 1 to 31 characters of [a-z0-9_], no digit first"),
        ("schema", "No", "schema 'No': must be 1 to 31 characters of [a-z0-9_], no digit first"),
        ("schema", 5, "schema 5: must be 1 to 31 characters of [a-z0-9_], no digit first"),
        (
            "table_prefix",
            "no good",
            "table_prefix 'no good': must be 1 to 31 characters of [a-z0-9_], no digit first",
        ),
        (
            "table_prefix",
            None,
            "table_prefix None: must be 1 to 31 characters of [a-z0-9_], no digit first",
        ),
        ("listen_url", 5, "listen_url int: must be a database URL"),
        (
            "listen_url",
            "xyz",
            "listen_url: is not a database URL; are special characters in it quoted?",
        ),
        ("retention_hours", 0, "retention_hours 0: must be above 0 and at most 876,000"),
        ("max_payload_bytes", "1", "max_payload_bytes '1': must be a whole number"),
    ],
)
def test_a_wrong_option_is_told_with_its_value(
    folder: Path, target: str, option: str, value: object, told: str
) -> None:
    options: dict[str, Any] = {"migrate": True, option: value}
    assert refused(InvalidOptionsError, lambda: open_queue(target, **options)) == told
    assert list(folder.iterdir()) == []


@each_target
@pytest.mark.parametrize("option", ["retention", "concurrency", "connect_args", "tableprefix"])
def test_an_unknown_option_is_told_the_known_ones(target: str, option: str) -> None:
    options: dict[str, Any] = {option: 1}
    assert refused(InvalidOptionsError, lambda: open_queue(target, **options)) == (
        f"unknown option '{option}' (known: acked_retention_hours, janitor_interval, listen_url, "
        "locker, max_payload_bytes, migrate, retention_hours, schema, table_prefix, wake)"
    )


@each_target
@pytest.mark.parametrize("url", ["sqlite:///a.db", "memory://", "mysql://h/d", "postgres://h/d"])
def test_only_postgresql_can_be_listened_to(target: str, url: str) -> None:
    told = refused(UnsupportedError, lambda: open_queue(target, listen_url=url))
    assert told.startswith(f"listen_url: database '{url.partition(':')[0]}' is none of postgresql")


@each_target
def test_a_listener_is_a_thread(target: str) -> None:
    told = refused(
        UnsupportedError, lambda: open_queue(target, listen_url="postgresql+asyncpg://h/d")
    )
    assert told.startswith("listen_url: 'postgresql+asyncpg' is asynchronous, ")


def test_sqlite_does_not_listen_elsewhere() -> None:
    told = refused(
        InvalidOptionsError, lambda: open_queue("sqlite:///opened.db", listen_url=POSTGRES)
    )
    assert told == "listen_url: is for PostgreSQL, and target is of 'sqlite'"


@pytest.mark.parametrize("target", ["memory://", POSTGRES])
def test_the_options_of_production_open_a_queue_in_memory_too(target: str) -> None:
    for locker in (ProcessLocker(), None):
        options: dict[str, Any] = {"schema": "messaging", "table_prefix": "jobs_", "wake": False}
        open_queue(target, locker=locker, listen_url=POSTGRES, **options).close()
        open_queue(target, locker=locker, listen_url=None).close()


def test_a_locker_is_checked_however_it_is_handed_over() -> None:
    engine = sa.create_engine("sqlite:///opened.db")
    config = Config(enabled=True, type="logstore")
    dependencies = Dependencies(engine=engine, locker=5)  # type: ignore[arg-type]
    for call in (
        lambda: new_queue(config, dependencies),
        lambda: open_database_store(engine, locker=5),  # type: ignore[arg-type]
    ):
        assert refused(InvalidOptionsError, call) == "locker 5: must be a DistributedLocker"
