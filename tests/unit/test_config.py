"""Configurations: exactly the JSON of the Go package, and the settings that come of it."""

from __future__ import annotations

import dataclasses
import json
import pickle
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest

from queue_lib import (
    Config,
    EngineConfig,
    InvalidOptionsError,
    LogStoreQueueConfig,
    MemoryQueueConfig,
    PurgePolicy,
    QueueType,
)

SEED = """
{
    "enabled": true,
    "type": "logstore",
    "config": {
        "retention_hours": 336,
        "acked_retention_hours": 48,
        "janitor_interval": "1h30m",
        "max_payload_bytes": 2097152
    }
}
"""
HOSTILE = [
    True, False, "", "24", b"24", [], {}, float("nan"), float("inf"), -1, 0, 10**5000,
]  # fmt: skip


# -- JSON --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [SEED, SEED.encode(), SEED.encode("utf-16")])
def test_the_go_packages_json_is_read(text: str | bytes) -> None:
    config = Config.from_json(text)
    assert config == Config(
        enabled=True,
        type=QueueType.LOG_STORE,
        config=LogStoreQueueConfig(
            retention_hours=336,
            acked_retention_hours=48,
            janitor_interval="1h30m",
            max_payload_bytes=2_097_152,
        ),
    )
    assert config.config.janitor() == timedelta(minutes=90)


@pytest.mark.parametrize(
    ("type_", "kind"), [("logstore", LogStoreQueueConfig), ("memory", MemoryQueueConfig)]
)
@pytest.mark.parametrize("inner", [{}, {"config": None}, {"config": {}}])
def test_a_built_in_type_gets_its_own_config_class(
    type_: str, kind: type[EngineConfig], inner: dict[str, object]
) -> None:
    config = Config.from_mapping({"enabled": True, "type": type_, **inner})
    assert type(config.config) is kind
    assert config.config == kind()


def test_a_registered_type_keeps_its_block_as_it_is() -> None:
    block = {"brokers": ["a:1"], "retention_hours": "not ours to judge"}
    config = Config.from_mapping({"enabled": True, "type": "kafka", "config": block})
    assert config.config is block


@pytest.mark.parametrize("block", [{"nonsense": 1}, {"retention_hours": -1}, "x", 5, [], None])
def test_the_block_of_a_disabled_config_is_not_looked_at(block: object) -> None:
    for switch in ({"enabled": False}, {"enabled": None}, {}):
        config = Config.from_mapping({**switch, "type": "logstore", "config": block})
        assert not config.enabled
        assert config.config is block


def test_an_empty_object_is_a_disabled_config() -> None:
    assert Config.from_json("{}") == Config() == Config(enabled=False, type="", config=None)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "{'enabled': true}", "nil", b"\xff\xfe\xfd", "[" * 100_000, "\ufeff{}",
        '{"enabled": ' + "9" * 5000 + "}", None, 5,
    ],
    ids=lambda text: ascii(text)[:20],
)  # fmt: skip
def test_what_is_no_json_is_refused(text: Any) -> None:
    with pytest.raises(InvalidOptionsError, match=r"^config: is not JSON: "):
        Config.from_json(text)


@pytest.mark.parametrize("text", ["null", "[]", "5", '"memory"'])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidOptionsError, match=r"^config .*: must be an object$"):
        Config.from_json(text)


# -- wrong values ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"enable": True}, r"^unknown option 'enable' \(known: config, enabled, type\)$"),
        ({"enabled": True, 5: 1}, r"^unknown option 5 \("),
        ({"enabled": "false"}, "^enabled 'false': must be true or false$"),
        ({"enabled": 1}, "^enabled 1: must be true or false$"),
        ({"enabled": 10**5000}, "^enabled of type int: must be"),
        ({"enabled": True, "type": 5}, "^type 5: must be a string$"),
        ({"enabled": False, "type": ["memory"]}, r"^type \['memory'\]: must be a string$"),
        ({"enabled": True, "type": "memory", "config": "x"}, "^config str: must be an object$"),
        ({"enabled": True, "type": "memory", "config": [1]}, "^config list: must be an object$"),
        (
            {"enabled": True, "type": "memory", "config": {"retention": 1}},
            r"^unknown option 'retention' \(known: acked_retention_hours, janitor_",
        ),
        (
            {"enabled": True, "type": "logstore", "config": {"retention_hours": 0}},
            "^retention_hours 0: must be above 0",
        ),
    ],
)
def test_a_wrong_config_is_told_its_field(data: Any, why: str) -> None:
    with pytest.raises(InvalidOptionsError, match=why):
        Config.from_mapping(data)


def test_a_config_made_by_hand_is_checked_too() -> None:
    with pytest.raises(InvalidOptionsError, match=r"^enabled 'no': "):
        Config(enabled="no")  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionsError, match=r"^type b'memory': "):
        Config(enabled=True, type=b"memory")  # type: ignore[arg-type]


def test_a_url_taken_for_a_config_is_not_shown() -> None:
    with pytest.raises(InvalidOptionsError) as caught:
        Config.from_mapping("postgresql://me:hunter2@host/db")  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(Config(type="kafka", config={"password": "hunter2"}))


# -- the engine's settings ---------------------------------------------------------------------


def test_the_defaults_are_the_contracts() -> None:
    assert dataclasses.asdict(EngineConfig()) == {
        "retention_hours": 168,
        "acked_retention_hours": 24,
        "janitor_interval": "10m",
        "max_payload_bytes": 1_048_576,
    }
    nones: dict[str, Any] = dict.fromkeys(dataclasses.asdict(EngineConfig()))
    assert EngineConfig(**nones) == EngineConfig.from_mapping(nones) == EngineConfig()
    assert EngineConfig.from_mapping(None) == EngineConfig()


def test_hours_become_retentions() -> None:
    config = EngineConfig(retention_hours=1.5, acked_retention_hours=0.5)
    assert config.retention() == timedelta(minutes=90)
    assert config.purge_policy() == PurgePolicy(
        dead_retention=timedelta(minutes=90), acked_retention=timedelta(minutes=30)
    )


@pytest.mark.parametrize("name", ["retention_hours", "acked_retention_hours"])
def test_hours_are_above_nothing_and_at_most_a_century(name: str) -> None:
    for hours in (1, 0.001, 876_000):
        assert getattr(EngineConfig.from_mapping({name: hours}), name) == hours
    for value in [*HOSTILE, 876_000.1, "10m", timedelta(hours=1)]:
        with pytest.raises(InvalidOptionsError, match=f"^{name} "):
            EngineConfig.from_mapping({name: value})


def test_a_payload_limit_is_a_whole_number_of_bytes_up_to_a_gibibyte() -> None:
    for limit in (1, 1 << 30):
        assert EngineConfig(max_payload_bytes=limit).max_payload_bytes == limit
    for value in [*HOSTILE, 1.5, (1 << 30) + 1]:
        with pytest.raises(InvalidOptionsError, match=r"^max_payload_bytes "):
            EngineConfig.from_mapping({"max_payload_bytes": value})


@pytest.mark.parametrize(
    ("value", "interval"),
    [
        ("10ms", timedelta(milliseconds=10)),
        ("1h30m", timedelta(minutes=90)),
        (timedelta(minutes=5), timedelta(minutes=5)),
        (600, timedelta(minutes=10)),
        (0.01, timedelta(milliseconds=10)),
    ],
)
def test_a_janitor_interval_is_any_kind_of_duration(
    value: timedelta | float | str, interval: timedelta
) -> None:
    assert EngineConfig(janitor_interval=value).janitor() == interval


def test_any_other_janitor_interval_is_refused() -> None:
    for value in [*HOSTILE, "9ms", "10", "1d", timedelta(0), 0.009, 1e300]:
        with pytest.raises(InvalidOptionsError, match=r"^janitor_interval "):
            EngineConfig.from_mapping({"janitor_interval": value})


def test_configs_are_immutable_mappings_need_not_be_dicts_and_both_can_be_pickled() -> None:
    data = MappingProxyType(json.loads(SEED) | {"config": MappingProxyType({"retention_hours": 1})})
    config = Config.from_mapping(data)
    assert config.config.retention_hours == 1
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301
    for frozen, name in ((config, "enabled"), (config.config, "retention_hours")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(frozen, name, 2)
