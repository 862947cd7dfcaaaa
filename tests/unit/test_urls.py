"""Naming a database: one error of ours for each way to do it wrong, wherever it is named."""

from __future__ import annotations

import importlib.util
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from queue_lib import InvalidOptionsError, QueueError, UnsupportedError, migrate, open_queue
from queue_lib.lockers.sql import SQLLocker
from queue_lib.registry import open_database_store
from queue_lib.urls import missing_file, read_target, read_url

TAKERS: dict[str, Callable[[Any], object]] = {
    "open_queue": open_queue,
    "open_database_store": open_database_store,
    "upgrade": migrate.upgrade,
    "downgrade": lambda target: migrate.downgrade(target, revision="base"),
    "current": migrate.current,
    "alembic_config": migrate.alembic_config,
    "parse_url": migrate.parse_url,
    "SQLLocker": SQLLocker,
}
KNOWN = {
    open_queue: "sqlite, postgresql, clickhouse, memory",
    SQLLocker: "postgresql, sqlite",
}

each_taker = pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)


def refused(take: Callable[[Any], object], target: object, kind: type[QueueError]) -> str:
    with pytest.raises(QueueError) as caught:
        take(target)
    assert type(caught.value) is kind
    return str(caught.value)


@each_taker
@pytest.mark.parametrize("target", [5, b"sqlite://", Path("app.db"), ["sqlite://"], sa.Engine])
def test_what_names_no_database_is_refused(take: Callable[[Any], object], target: object) -> None:
    told = refused(take, target, InvalidOptionsError)
    assert told.startswith(f"target {type(target).__name__}: must be a ")


@each_taker
@pytest.mark.parametrize("text", ["", "app.db", "sqlite", "postgresql://h:port/d"])
def test_what_is_no_url_is_refused(take: Callable[[Any], object], text: str) -> None:
    assert refused(take, text, InvalidOptionsError) == (
        "target: is not a database URL; are special characters in it quoted?"
    )


@each_taker
@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:///a\0b.db", "target: holds a NUL character"),
        ("sqlite:///a.db?timeout=1%00", "target: holds a NUL character"),
        ("postgresql://u:%00@h/d", "target: holds a NUL character"),
        (
            "sqlite:///a.db?timeout=abc",
            "target: its driver cannot take this URL: could not convert string to float: 'abc'",
        ),
        ("sqlite://host/a.db", "target: its driver cannot take this URL: Invalid SQLite URL: "),
        ("postgresql://u:hunter2@/d?host=a:1&host=b:x", "target: its driver cannot take this URL"),
    ],
)
def test_a_url_that_nobody_can_connect_with(
    take: Callable[[Any], object], url: str, told: str
) -> None:
    assert refused(take, url, InvalidOptionsError).startswith(told)


@each_taker
@pytest.mark.parametrize("url", ["sqlite+aiosqlite:///a.db", "postgresql+asyncpg://u@h/d"])
def test_an_asynchronous_driver_is_refused(take: Callable[[Any], object], url: str) -> None:
    driver = sa.make_url(url).drivername
    usual = {"sqlite+aiosqlite": "sqlite", "postgresql+asyncpg": "postgresql+psycopg"}[driver]
    assert refused(take, url, UnsupportedError) == (
        f"target: {driver!r} is asynchronous, and the queue works with threads; "
        f"name a synchronous driver, such as {usual!r}"
    )


@pytest.mark.parametrize("take", [open_queue, open_database_store, migrate.upgrade])
def test_an_asynchronous_engine_is_refused(take: Callable[[Any], object]) -> None:
    engine = sa.create_engine("postgresql+psycopg://u@h/d")
    engine.dialect.is_async = True  # as that of an `AsyncEngine`, whose URL is the same
    told = refused(take, engine, UnsupportedError)
    assert told.startswith("target: is an asynchronous engine, and the queue works with threads;")


@each_taker
def test_a_driver_that_nobody_has(take: Callable[[Any], object]) -> None:
    assert refused(take, "postgresql+nosuch://u:hunter2@h/d", UnsupportedError) == (
        "target: no driver 'postgresql+nosuch' is installed; 'postgresql+psycopg' is the usual one"
    )


@pytest.mark.skipif(
    importlib.util.find_spec("clickhouse_sqlalchemy") is not None, reason="it is installed"
)
def test_a_database_whose_packages_are_missing() -> None:
    told = refused(open_queue, "clickhouse+native://h/d", UnsupportedError)
    assert told.startswith("target: no driver 'clickhouse+native' is installed")


@pytest.mark.skipif(importlib.util.find_spec("pysqlcipher3") is not None, reason="is installed")
@pytest.mark.parametrize("take", [open_queue, open_database_store, migrate.upgrade])
def test_a_driver_whose_module_is_missing(take: Callable[[Any], object]) -> None:
    told = refused(take, "sqlite+pysqlcipher:///a.db", UnsupportedError)
    assert told == "target: its driver is missing: No module named 'pysqlcipher3'"


@each_taker
@pytest.mark.parametrize("name", ["mysql", "postgres", "oracle"])
def test_another_database_is_told_the_known_ones(take: Callable[[Any], object], name: str) -> None:
    known = KNOWN.get(take, "sqlite, postgresql, clickhouse")
    hint = "; write postgresql://" if name == "postgres" else ""
    assert refused(take, f"{name}://u:hunter2@h/d", UnsupportedError) == (
        f"target: database {name!r} is none of {known}{hint}"
    )


@pytest.mark.parametrize("take", [open_queue, open_database_store, migrate.upgrade])
def test_an_engine_of_another_database(take: Callable[[Any], object]) -> None:
    engine = sa.create_engine("sqlite://")
    engine.dialect.name = "mysql"
    told = refused(take, engine, UnsupportedError)
    assert told.startswith("target: database 'mysql' is none of sqlite, postgresql, clickhouse")


@pytest.mark.parametrize(
    "url",
    [
        "sqlite+aiosqlite:///hunter2", "postgresql://u:hunter2@h:x/d",
        "postgresql+psycopg://u:hunter2@h,h:x/d", "sqlite://u:hunter2@h/d", "nosuch://u:hunter2@h",
    ],
)  # fmt: skip
def test_no_error_shows_a_part_of_the_url(url: str) -> None:
    for target in (url, "postgresql://h/d"):
        with pytest.raises(QueueError) as caught:
            open_queue(target, listen_url=url)
        told = "".join(traceback.format_exception_only(caught.value))
        assert "hunter2" not in told
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_what_can_be_used_is_left_as_it_is() -> None:
    engine = sa.create_engine("sqlite:///a.db")
    assert read_target("target", engine) is engine
    for text in (
        "sqlite://", "sqlite:///a.db?timeout=1", "sqlite+pysqlite:///a.db", "postgresql://h/d",
        "postgresql+psycopg://u:p%40@h:1/d?connect_timeout=1", "postgresql+psycopg2://h/d",
        "postgresql://u@/d?host=a:1&host=b:2",
    ):  # fmt: skip
        url = sa.make_url(text)
        assert read_url("target", text) == read_url("target", url) == url
        assert read_target("target", url) is url


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    url = sa.URL.create("sqlite", database=str(path))
    assert missing_file(url) == str(path)
    path.touch()
    assert missing_file(url) is None
    for text in ("sqlite://", "sqlite:///:memory:", "sqlite:///file:x?uri=true", "postgresql:///x"):
        assert missing_file(sa.make_url(text)) is None
