"""Choosing a queue implementation: by URL, by configuration, or from another package.

The one module that knows concrete stores, and it imports one only when it is chosen.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from queue_lib.config import Config, EngineConfig, LogStoreQueueConfig, MemoryQueueConfig, QueueType
from queue_lib.engine.queue import StoreQueue, new_store_queue
from queue_lib.errors import InvalidOptionsError, UnsupportedError, shown
from queue_lib.interfaces import Queue
from queue_lib.locks import DistributedLocker
from queue_lib.options import check_flag, check_known
from queue_lib.stores.schema import DEFAULT_PREFIX, build_tables
from queue_lib.urls import DATABASES, read_target, read_url

if TYPE_CHECKING:
    from queue_lib.stores.clickhouse.store import ClickHouseStore
    from queue_lib.stores.sql.store import SqlStore

__all__ = [
    "ENTRY_POINT_GROUP",
    "Dependencies",
    "Factory",
    "new_queue",
    "open_database_store",
    "open_queue",
    "register",
    "registered",
]

ENTRY_POINT_GROUP = "queue_lib.queues"
"""Packages offer a `Factory` under this entry point group; its name is the type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """Shared resources that a queue implementation may build on. A queue never closes them."""

    engine: sa.Engine | None = None
    """The application's database; required for `QueueType.LOG_STORE`."""
    locker: DistributedLocker | None = None
    """A lock that all instances share; required to consume on ClickHouse."""


Factory = Callable[[Config, Dependencies], Queue]
"""Builds a queue. `config.config` is the typed block of a built-in type, else the raw mapping."""

_factories: dict[str, Factory] = {}  # guarded by _lock
_lock = threading.Lock()


def register(type_: str, factory: Factory) -> None:
    """Make a queue implementation available to `new_queue` under `type_`.

    Meant to be called once, at import or at startup. Thread-safe.

    Raises:
        InvalidOptionsError: the type is empty or registered already, or `factory` is no callable.
    """
    if not type_ or not isinstance(type_, str):
        raise InvalidOptionsError(f"type {shown(type_)}: must be a string that is not empty")
    if not callable(factory):
        raise InvalidOptionsError(f"factory {shown(factory)}: must be callable")
    with _lock:
        if type_ in _factories:
            raise InvalidOptionsError(f"type {shown(type_)}: is registered already")
        _factories[str.__str__(type_)] = factory  # the text of an Enum member, not its name


def registered() -> list[str]:
    """Return the known types, sorted: built in, registered, and offered by installed packages."""
    with _lock:
        known = set(_factories)
    return sorted(known | {point.name for point in entry_points(group=ENTRY_POINT_GROUP)})


def new_queue(config: Config | None, dependencies: Dependencies | None = None) -> Queue | None:
    """Build the queue that `config` selects; `None` if it is `None` or disabled.

    Raises:
        InvalidOptionsError: the type is unknown, or its configuration or the locker is not valid.
        UnsupportedError: a dependency is missing or of a kind that the queue cannot use, or the
            factory made nothing.
    """
    if config is None:
        return None
    if not isinstance(config, Config):
        raise InvalidOptionsError(
            f"config {type(config).__name__}: must be a Config; Config.from_mapping makes one"
        )
    if not config.enabled:
        return None
    if dependencies is None:
        dependencies = Dependencies()
    elif not isinstance(dependencies, Dependencies):
        raise UnsupportedError(f"dependencies {type(dependencies).__name__}: must be Dependencies")
    with _lock:
        factory = _factories.get(config.type)
    if factory is None:
        factory = _offered(config.type)
    queue: Queue | None = factory(config, dependencies)
    if queue is None:  # a return that was forgotten must not mean "no queue is configured"
        raise UnsupportedError(f"type {shown(config.type)}: its factory returned None")
    return queue


def open_queue(
    target: str | sa.URL | sa.Engine,
    *,
    locker: DistributedLocker | None = None,
    migrate: bool = False,
    schema: str | None = None,
    table_prefix: str = DEFAULT_PREFIX,
    wake: bool = True,
    listen_url: str | sa.URL | None = None,
    **engine_config: Any,
) -> StoreQueue:
    """Open a queue on a database, the short way. Connects when it is first used.

    Args:
        target: ``sqlite:///app.db``, ``postgresql+psycopg://…``, ``clickhouse+native://…`` or
            ``memory://``, which checks the other options and needs none; or an application's
            engine, which is borrowed and never disposed of.
        locker: a lock that all instances share, for databases that need one.
        migrate: create or upgrade the tables now.
        schema: the schema of the tables; on ClickHouse their database; SQLite has none.
        table_prefix: what the names of the tables begin with.
        wake: tell other processes of publishes and listen for theirs; without it they poll.
        listen_url: where to listen when `target` goes through a transaction pooler; PostgreSQL
            only.
        **engine_config: fields of `EngineConfig`.

    Raises:
        InvalidOptionsError: an option is unknown or out of bounds.
        UnsupportedError: the database or its driver is of a kind that the queue cannot use.
        StoreError: `migrate` failed.
    """
    check_known(engine_config, _known_options())
    config = EngineConfig(**engine_config)
    check_flag("migrate", migrate)
    target = read_target("target", target, (*DATABASES, "memory"))
    if _database_of(target) == "memory":
        _check_options(locker, schema, table_prefix, wake, listen_url)
        from queue_lib.stores.memory import MemoryStore

        return new_store_queue(MemoryStore(), config)
    store = open_database_store(
        target,
        locker=locker,
        schema=schema,
        table_prefix=table_prefix,
        wake=wake,
        listen_url=listen_url,
    )
    if migrate:
        from queue_lib.migrate import upgrade

        try:
            upgrade(store.migration_target, schema=schema, table_prefix=table_prefix)
        except BaseException:
            store.close()
            raise
    return new_store_queue(store, config)


def open_database_store(
    target: str | sa.URL | sa.Engine,
    *,
    locker: DistributedLocker | None = None,
    schema: str | None = None,
    table_prefix: str = DEFAULT_PREFIX,
    wake: bool = True,
    listen_url: str | sa.URL | None = None,
) -> SqlStore | ClickHouseStore:
    """Open the store that fits an engine or a URL.

    Raises:
        InvalidOptionsError: an option is out of bounds.
        UnsupportedError: the database or its driver is of a kind that the queue cannot use.
    """
    target = read_target("target", target)
    listen = _check_options(locker, schema, table_prefix, wake, listen_url)
    name = _database_of(target)
    if listen is not None and name != "postgresql":
        raise InvalidOptionsError(f"listen_url: is for PostgreSQL, and target is of {name!r}")
    try:
        if name == "clickhouse":
            from queue_lib.stores.clickhouse.open import open_clickhouse_store

            return open_clickhouse_store(target, locker, schema=schema, table_prefix=table_prefix)
        from queue_lib.stores.sql.open import open_sql_store

        return open_sql_store(
            target, schema=schema, table_prefix=table_prefix, wake=wake, listen_url=listen
        )
    except ImportError as error:
        raise UnsupportedError(f"target: its driver is missing: {error}") from error


def _check_options(
    locker: object, schema: str | None, table_prefix: str, wake: object, listen_url: object
) -> sa.URL | None:
    """Check the options of a database; return where to listen."""
    if locker is not None and not _is_locker(locker):
        raise InvalidOptionsError(f"locker {shown(locker)}: must be a DistributedLocker")
    check_flag("wake", wake)
    build_tables(table_prefix, schema)  # checks both
    return None if listen_url is None else read_url("listen_url", listen_url, ["postgresql"])


def _is_locker(given: object) -> bool:
    return isinstance(given, DistributedLocker) and not isinstance(given, type)


def _database_of(target: sa.URL | sa.Engine) -> str:
    return target.dialect.name if isinstance(target, sa.Engine) else target.get_backend_name()


def _known_options() -> set[str]:
    """Return what `open_queue` takes as keywords."""
    own = inspect.signature(open_queue).parameters.values()
    return {it.name for it in own if it.kind is it.KEYWORD_ONLY} | {
        setting.name for setting in fields(EngineConfig)
    }


def _offered(type_: str) -> Factory:
    for point in entry_points(group=ENTRY_POINT_GROUP, name=type_):
        factory: Factory = point.load()
        if not callable(factory):
            raise InvalidOptionsError(
                f"type {shown(type_)}: entry point {point.value} is not callable"
            )
        return factory
    raise InvalidOptionsError(
        f"type {shown(type_)}: unknown; registered are {', '.join(registered())}"
    )


def _inner(config: Config, kind: type[EngineConfig]) -> EngineConfig:
    inner = config.config
    if inner is None or isinstance(inner, Mapping):
        return kind.from_mapping(inner)
    if isinstance(inner, EngineConfig):
        return inner
    raise InvalidOptionsError(f"config {type(inner).__name__}: must be a {kind.__name__}")


def _log_store_queue(config: Config, dependencies: Dependencies) -> Queue:
    if not isinstance(dependencies.engine, sa.Engine):
        raise UnsupportedError(
            f"engine {type(dependencies.engine).__name__}: type {QueueType.LOG_STORE.value!r} "
            "needs an SQLAlchemy Engine"
        )
    settings = _inner(config, LogStoreQueueConfig)
    store = open_database_store(dependencies.engine, locker=dependencies.locker)
    return new_store_queue(store, settings)


def _memory_queue(config: Config, dependencies: Dependencies) -> Queue:
    from queue_lib.stores.memory import MemoryStore

    return new_store_queue(MemoryStore(), _inner(config, MemoryQueueConfig))


register(QueueType.LOG_STORE, _log_store_queue)
register(QueueType.MEMORY, _memory_queue)
