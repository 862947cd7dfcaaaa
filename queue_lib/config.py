"""The configuration of a queue, as code or as the JSON that the Go package reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self

from queue_lib.durations import DurationLike, parse_duration, to_timedelta
from queue_lib.errors import InvalidOptionsError, shown
from queue_lib.options import check_count, check_flag, check_known, fill_defaults
from queue_lib.stores.base import PurgePolicy

__all__ = [
    "DEFAULT_ACKED_RETENTION_HOURS",
    "DEFAULT_JANITOR_INTERVAL",
    "DEFAULT_MAX_PAYLOAD_BYTES",
    "DEFAULT_RETENTION_HOURS",
    "Config",
    "EngineConfig",
    "LogStoreQueueConfig",
    "MemoryQueueConfig",
    "QueueType",
]

DEFAULT_RETENTION_HOURS = 168
"""How long dead deliveries are kept, and how far ahead a message may be scheduled."""
DEFAULT_ACKED_RETENTION_HOURS = 24
"""How long a message is kept once every group has finished with it."""
DEFAULT_JANITOR_INTERVAL = "10m"
"""Time between purge passes."""
DEFAULT_MAX_PAYLOAD_BYTES = 1 << 20
"""Largest payload of one message."""

_MAX_HOURS = 876_000  # a hundred years


class QueueType(StrEnum):
    """The built-in queue implementations."""

    LOG_STORE = "logstore"
    """Messages in the application's database: SQLite, PostgreSQL or ClickHouse."""
    MEMORY = "memory"
    """Messages in this process: for tests; they do not survive a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of the engine that all built-in queues share. Immutable and valid.

    `None` stands for the default. Anything out of bounds raises `InvalidOptionsError`.
    """

    retention_hours: float = DEFAULT_RETENTION_HOURS
    """How long dead deliveries are kept; also how far ahead a message may be scheduled."""
    acked_retention_hours: float = DEFAULT_ACKED_RETENTION_HOURS
    """How long a message is kept once no delivery needs it, for late `earliest` groups."""
    janitor_interval: timedelta | float | str = DEFAULT_JANITOR_INTERVAL
    """Time between purge passes, at least 10 ms: a Go duration, a `timedelta` or seconds."""
    max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES
    """Largest payload of one message, 1 byte to 1 GiB."""

    def __post_init__(self) -> None:
        fill_defaults(self)
        for name in ("retention_hours", "acked_retention_hours"):
            hours = getattr(self, name)
            if isinstance(hours, bool) or not isinstance(hours, int | float):
                raise InvalidOptionsError(f"{name} {shown(hours)}: must be a number of hours")
            if not 0 < hours <= _MAX_HOURS:
                raise InvalidOptionsError(
                    f"{name} {shown(hours)}: must be above 0 and at most {_MAX_HOURS:,}"
                )
        check_count("max_payload_bytes", self.max_payload_bytes, 1, 1 << 30)
        self.janitor()

    def janitor(self) -> timedelta:
        """Return the time between purge passes."""
        value: DurationLike | str = self.janitor_interval
        if isinstance(value, str):
            value = parse_duration("janitor_interval", value)
        return to_timedelta("janitor_interval", value, least=timedelta(milliseconds=10))

    def retention(self) -> timedelta:
        """Return how long dead deliveries are kept, and how far ahead one may schedule."""
        return timedelta(hours=self.retention_hours)

    def purge_policy(self) -> PurgePolicy:
        """Return the retentions that the janitor applies."""
        return PurgePolicy(
            dead_retention=self.retention(),
            acked_retention=timedelta(hours=self.acked_retention_hours),
        )

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any] | None) -> Self:
        """Build from decoded JSON with the field names of this class.

        Raises:
            InvalidOptionsError: an unknown key, or a value out of bounds.
        """
        return cls(**_checked({} if data is None else data, cls))


class LogStoreQueueConfig(EngineConfig):
    """Configures the queue in the application's database."""

    __slots__ = ()


class MemoryQueueConfig(EngineConfig):
    """Configures the in-memory queue."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Config:
    """Selects and configures a queue implementation; `new_queue` builds it."""

    enabled: bool = False
    """`False`: there is no queue, and `config` is not looked at."""
    type: str = ""
    """A `QueueType`, or a type that was registered."""
    config: Any = field(default=None, repr=False)
    """The type's own block: its config class, or the raw mapping for a registered type."""

    def __post_init__(self) -> None:
        fill_defaults(self)
        check_flag("enabled", self.enabled)
        if not isinstance(self.type, str):
            raise InvalidOptionsError(f"type {shown(self.type)}: must be a string")

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> Self:
        """Build from decoded JSON: ``enabled``, ``type`` and ``config``.

        The inner block of a built-in type becomes that type's config class; a type that this
        package does not know keeps it raw for its factory, and a disabled config keeps it
        unread.

        Raises:
            InvalidOptionsError: an unknown key, or a value of the wrong kind.
        """
        config = cls(**_checked(data, cls))
        if config.enabled and (typed := _TYPED.get(config.type)) is not None:
            return replace(config, config=typed.from_mapping(config.config))
        return config

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Build from JSON text; see `from_mapping`.

        Raises:
            InvalidOptionsError: not JSON, an unknown key, or a value of the wrong kind.
        """
        try:
            data = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidOptionsError(f"config: is not JSON: {error}") from error
        return cls.from_mapping(data)


def _checked(data: object, kind: type[Config | EngineConfig]) -> Mapping[str, Any]:
    """Return `data` if it is a mapping of nothing but the fields of `kind`."""
    if not isinstance(data, Mapping):
        raise InvalidOptionsError(f"config {type(data).__name__}: must be an object")
    check_known(data, {option.name for option in fields(kind)})
    return data


_TYPED: Mapping[str, type[EngineConfig]] = {
    QueueType.LOG_STORE: LogStoreQueueConfig,
    QueueType.MEMORY: MemoryQueueConfig,
}
