"""Choosing a queue: by configuration, by URL, and from another package."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from queue_lib import (
    Config,
    Dependencies,
    EngineConfig,
    InvalidOptionsError,
    MemoryQueueConfig,
    Message,
    Queue,
    QueueError,
    QueueType,
    UnsupportedError,
    new_queue,
    new_store_queue,
    open_queue,
    register,
    registered,
    registry,
)
from queue_lib.stores.memory import MemoryStore


class Kind(str, Enum):  # the kind whose `str` is its name and not its text
    KAFKA = "kafka"


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An installed package that offers queues by entry points."""
    name = "queue_of_another_package"
    (tmp_path / f"{name}.py").write_text(
        "from queue_lib import new_store_queue\n"
        "from queue_lib.stores.memory import MemoryStore\n"
        "seen = []\n"
        "def make(config, dependencies):\n"
        "    seen.append((config, dependencies))\n"
        "    return new_store_queue(MemoryStore())\n"
    )
    info = tmp_path / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{registry.ENTRY_POINT_GROUP}]\n"
        f"elsewhere = {name}:make\nuncallable = {name}:seen\nmissing = {name}:absent\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def made(config: Config, dependencies: Dependencies | None = None) -> Queue:
    queue = new_queue(config, dependencies)
    assert queue is not None
    return queue


def memory_factory(config: Config, dependencies: Dependencies) -> Queue:
    return new_store_queue(MemoryStore())


# -- registering -------------------------------------------------------------------------------


def test_the_built_in_types_are_registered() -> None:
    assert set(registered()) >= {"logstore", "memory"}
    assert registered() == sorted(registered())
    assert {type(type_) for type_ in registered()} == {str}


def test_a_registered_factory_gets_the_raw_block_and_the_dependencies() -> None:
    seen: list[tuple[Config, Dependencies]] = []

    def factory(config: Config, dependencies: Dependencies) -> Queue:
        seen.append((config, dependencies))
        return new_store_queue(MemoryStore())

    register("kafka", factory)
    assert "kafka" in registered()
    block = {"brokers": ["a:1"]}
    config = Config.from_mapping({"enabled": True, "type": "kafka", "config": block})
    dependencies = Dependencies()
    with made(config, dependencies), made(config):
        assert seen == [(config, dependencies), (config, Dependencies())]
        assert seen[0][0].config is block
        assert seen[0][1] is dependencies


@pytest.mark.parametrize("type_", ["memory", "kafka", QueueType.LOG_STORE])
def test_a_type_is_registered_once(type_: str) -> None:
    register("kafka", memory_factory)
    with pytest.raises(InvalidOptionsError, match=r"is registered already$"):
        register(type_, memory_factory)


@pytest.mark.parametrize("type_", ["", None, 5, b"kafka", ["kafka"]])
def test_a_type_is_a_text(type_: Any) -> None:
    with pytest.raises(InvalidOptionsError, match=r"^type .*must be a string that is not empty$"):
        register(type_, memory_factory)


@pytest.mark.parametrize("factory", [None, "queue_lib:make", MemoryStore(), {}])
def test_a_factory_is_callable(factory: Any) -> None:
    with pytest.raises(InvalidOptionsError, match=r"^factory .*must be callable$"):
        register("kafka", factory)
    assert "kafka" not in registered()


def test_an_enum_member_counts_as_its_text() -> None:
    register(Kind.KAFKA, memory_factory)
    assert "kafka" in registered()
    for type_ in ("kafka", Kind.KAFKA):
        made(Config(enabled=True, type=type_)).close()


# -- building by configuration -----------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        None, Config(), Config(type="memory"), Config(type="unknown", config={"nonsense": 1}),
        Config(type="memory", config={"retention_hours": -1}),
    ],
)  # fmt: skip
def test_nothing_or_disabled_means_no_queue(config: Config | None) -> None:
    assert new_queue(config) is None
    assert new_queue(config, "no dependencies") is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "block", [None, {}, {"retention_hours": 1}, MemoryQueueConfig(), EngineConfig()]
)
def test_a_memory_queue_is_built(block: object) -> None:
    with made(Config(enabled=True, type="memory", config=block)) as queue:
        assert isinstance(queue, Queue)
        queue.publish(Message("orders"))


@pytest.mark.parametrize("type_", ["memory", "logstore"])
@pytest.mark.parametrize("block", [{"nonsense": 1}, {"retention_hours": -1}, "x", 5, []])
def test_a_wrong_block_is_refused(type_: str, block: object) -> None:
    dependencies = Dependencies(engine=sa.create_engine("sqlite://"))
    with pytest.raises(InvalidOptionsError):
        new_queue(Config(enabled=True, type=type_, config=block), dependencies)


@pytest.mark.parametrize("type_", ["", "Memory", "memory ", "redis"])
def test_an_unknown_type_is_told_the_known_ones(type_: str) -> None:
    register("kafka", memory_factory)
    with pytest.raises(
        InvalidOptionsError,
        match=f"^type '{type_}': unknown; registered are .*kafka, logstore, mem",
    ):
        new_queue(Config(enabled=True, type=type_))


@pytest.mark.parametrize("config", [{"enabled": True, "type": "memory"}, "memory", True, Config])
def test_a_config_is_a_config(config: Any) -> None:
    with pytest.raises(
        InvalidOptionsError, match=r"must be a Config; Config.from_mapping makes one$"
    ):
        new_queue(config)


@pytest.mark.parametrize(
    "engine", [None, "sqlite://", sa.make_url("sqlite://"), object(), MemoryStore()]
)
def test_a_log_store_needs_an_engine(engine: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"^engine .*needs an SQLAlchemy Engine$"):
        new_queue(Config(enabled=True, type="logstore"), Dependencies(engine=engine))


@pytest.mark.parametrize("wrong", [{}, "sqlite://", sa.create_engine("sqlite://"), object()])
def test_dependencies_are_dependencies(wrong: Any) -> None:
    for type_ in ("memory", "logstore"):
        with pytest.raises(UnsupportedError, match=r"^dependencies .*must be Dependencies$"):
            new_queue(Config(enabled=True, type=type_), wrong)


def test_a_factory_that_forgot_to_return_is_not_taken_for_no_queue() -> None:
    register("kafka", lambda config, dependencies: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(UnsupportedError, match=r"^type 'kafka': its factory returned None$"):
        new_queue(Config(enabled=True, type="kafka"))


# -- other packages ----------------------------------------------------------------------------


def test_an_installed_packages_queue_is_found_and_imported_when_it_is_chosen(package: str) -> None:
    assert {"elsewhere", "memory"} <= set(registered())
    assert package not in sys.modules
    with made(Config(enabled=True, type="elsewhere", config={"a": 1})) as queue:
        queue.publish(Message("orders"))
    ((config, dependencies),) = sys.modules[package].seen
    assert config.config == {"a": 1}
    assert dependencies == Dependencies()


def test_a_registered_type_goes_before_an_installed_one(package: str) -> None:
    register("elsewhere", memory_factory)
    made(Config(enabled=True, type="elsewhere")).close()
    assert package not in sys.modules
    assert registered().count("elsewhere") == 1


@pytest.mark.usefixtures("package")
def test_a_broken_package_is_told_apart_from_an_unknown_type() -> None:
    with pytest.raises(InvalidOptionsError, match=r"entry point \w+:seen is not callable$"):
        new_queue(Config(enabled=True, type="uncallable"))
    with pytest.raises(AttributeError, match="absent"):
        new_queue(Config(enabled=True, type="missing"))


# -- opening by URL ----------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["memory://", sa.make_url("memory://")])
def test_a_memory_queue_is_opened(target: str | sa.URL) -> None:
    with open_queue(target, retention_hours=1, janitor_interval="1m") as queue:
        queue.publish(Message("orders"))


@pytest.mark.parametrize("target", [None, 5, b"memory://", Path("app.db"), ["memory://"], Config()])
def test_a_target_is_a_url_or_an_engine(target: Any) -> None:
    with pytest.raises(InvalidOptionsError, match=r"^target .*must be a URL or an Engine$"):
        open_queue(target)


@pytest.mark.parametrize(
    "target",
    [
        "me:hunter2@host/db",
        "//me:hunter2@host/db",
        "://me:hunter2@host/db",
        "postgresql:me:hunter2@host/db",
        "postgresql//me:hunter2@host/db",
        "postgresql://me:p@rt:hunter2@host/db",  # read as a port
        "postgresql://me:hunter2@host:port/db",
        "postgresql+psycopg://me:hunter2@[::1/db",
        "mysql://me:hunter2@host/db",
        "oracle+oracledb://me:hunter2@host/db",
        "no+such+thing://me:hunter2@host/db",
        "+://me:hunter2@host/db",
        "hunter2",
        "",
        sa.make_url("mssql+pyodbc://me:hunter2@host/db"),
    ],
    ids=range(15),
)
def test_a_bad_target_is_an_error_that_shows_no_password(target: str | sa.URL) -> None:
    with pytest.raises(QueueError) as caught:
        open_queue(target, migrate=True)
    assert isinstance(caught.value, InvalidOptionsError | UnsupportedError)
    told = "".join(traceback.format_exception_only(caught.value))
    chain = caught.value.__cause__ or (
        None if caught.value.__suppress_context__ else caught.value.__context__
    )
    assert chain is None
    assert "hunter2" not in told
