"""What is public keeps the contract's shape, says what it is, and type-checks."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import queue_lib
from queue_lib.engine.queue import StoreQueue
from queue_lib.engine.subscription import StoreSubscription
from queue_lib.stores.memory import MemoryStore
from queue_lib.stores.sql.store import SqlStore

_ROOT = Path(__file__).parents[2]
_HERE = Path(__file__).parent


# -- documentation, read from the source: constants and fields have no __doc__ -------------------


def _definitions(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.stmt, str | None]]:
    """Give each definition in a module or class, with its docstring."""
    for node, following in zip(body, [*body[1:], None], strict=True):
        match node:
            case ast.ClassDef() | ast.FunctionDef():
                yield node.name, node, ast.get_docstring(node)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                match following:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        yield name, node, text
                    case _:
                        yield name, node, None


def _public() -> dict[str, tuple[ast.stmt, str | None]]:
    """Find each public name where the package imports it from."""
    found = {}
    for imported in ast.parse(Path(queue_lib.__file__).read_text(encoding="utf-8")).body:
        if isinstance(imported, ast.ImportFrom) and str(imported.module).startswith("queue_lib."):
            source = importlib.import_module(str(imported.module)).__file__
            tree = ast.parse(Path(str(source)).read_text(encoding="utf-8"))
            defined = {name: (node, text) for name, node, text in _definitions(tree.body)}
            found.update({alias.name: defined[alias.name] for alias in imported.names})
    return found


def test_every_public_name_is_documented_where_it_is_defined() -> None:
    public = _public()
    assert set(public) == set(queue_lib.__all__)
    assert [name for name, (_, text) in public.items() if not text] == []


def test_every_public_method_field_and_member_is_documented() -> None:
    silent = [
        f"{owner}.{member}"
        for owner, (node, _) in _public().items()
        if isinstance(node, ast.ClassDef)
        for member, _, text in _definitions(node.body)
        if not member.startswith("_") and not text
    ]
    assert silent == []


# -- the contract's shape ------------------------------------------------------------------------


def _methods(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_a_store_is_twelve_methods() -> None:
    assert _methods(queue_lib.Store) == {
        "ensure_group", "append", "claim", "ack", "retry", "kill", "extend", "release", "purge",
        "stats", "ping", "close",
    }  # fmt: skip


def test_a_queue_is_seven_methods_and_a_context_manager() -> None:
    assert _methods(queue_lib.Queue) == {
        "publish", "subscribe", "subscriber", "stats", "ping", "health", "close",
    }  # fmt: skip
    assert hasattr(queue_lib.Queue, "__enter__")
    assert hasattr(queue_lib.Queue, "__exit__")


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (queue_lib.Message, "topic payload key id headers deliver_at published_at priority"),
        (
            queue_lib.SubscribeOptions,
            """concurrency batch_size poll_interval lease_duration max_attempts backoff_base
            backoff_max dead_letter_topic max_in_flight start_from""",
        ),
        (
            queue_lib.EngineConfig,
            "retention_hours acked_retention_hours janitor_interval max_payload_bytes",
        ),
        (queue_lib.Config, "enabled type config"),
        (queue_lib.Dependencies, "engine locker"),
        (queue_lib.Stats, "pending leased dead"),
        (queue_lib.PurgePolicy, "dead_retention acked_retention"),
        (queue_lib.ClaimRequest, "topic group runner_id max lease max_in_flight"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_the_fields_of_the_contract_are_there_in_their_order(kind: Any, names: str) -> None:
    assert [field.name for field in dataclasses.fields(kind)] == names.split()


def test_the_short_way_takes_what_the_contract_says() -> None:
    parameters = inspect.signature(queue_lib.open_queue).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    assert list(defaults)[:5] == ["target", "locker", "migrate", "schema", "table_prefix"]
    assert list(defaults.values())[1:5] == [None, False, None, "queue_"]
    assert parameters["locker"].kind is inspect.Parameter.KEYWORD_ONLY
    for close in (queue_lib.Queue.close, queue_lib.Subscription.close, StoreQueue.close):
        assert inspect.signature(close).parameters["timeout"].default is None


def test_the_constants_are_the_contracts() -> None:
    assert {
        name.removeprefix("HEADER_DEAD_LETTER_"): getattr(queue_lib, name)
        for name in queue_lib.__all__
        if name.startswith("HEADER_")
    } == {
        "SOURCE_TOPIC": "x-queue-dlq-source-topic",
        "GROUP": "x-queue-dlq-group",
        "DELIVERY_ID": "x-queue-dlq-delivery-id",
        "MESSAGE_ID": "x-queue-dlq-message-id",
        "ATTEMPTS": "x-queue-dlq-attempts",
        "ERROR": "x-queue-dlq-error",
    }
    assert (queue_lib.MAX_NAME_LENGTH, queue_lib.MAX_ID_LENGTH) == (200, 255)
    assert list(queue_lib.QueueType) == ["logstore", "memory"]
    assert list(queue_lib.StartFrom) == ["latest", "earliest"]
    for kind in (queue_lib.SubscribeOptions, queue_lib.EngineConfig):
        for field in dataclasses.fields(kind):
            constant = getattr(queue_lib, f"DEFAULT_{field.name.upper()}", field.default)
            assert field.default == constant


# -- protocols and types -------------------------------------------------------------------------


def test_every_protocol_can_be_asked_for_at_run_time() -> None:
    protocols = [
        kind
        for name in queue_lib.__all__
        if getattr(kind := getattr(queue_lib, name), "_is_protocol", False)
    ]
    assert len(protocols) >= 12
    assert [kind for kind in protocols if isinstance(object(), kind)] == []


@pytest.mark.parametrize(
    ("kind", "protocols"),
    [
        (MemoryStore, "Store DetailedStats ForkAware"),
        (SqlStore, "Store DetailedStats ForkAware TransactionalStore WakeSource"),
        (StoreQueue, "Queue Publisher Subscriber DetailedStats ForkAware"),
        (StoreSubscription, "Subscription"),
        (queue_lib.ProcessLocker, "DistributedLocker ForkAware"),
    ],
)
def test_implementations_have_these_capabilities_and_no_others(kind: type, protocols: str) -> None:
    known = """
        Store DetailedStats ForkAware TransactionalStore WakeSource ConsumeChecker Queue Publisher
        Subscriber DistributedLocker
    """.split()
    if kind is StoreSubscription:  # whatever has a `close` would pass for one
        known = ["Subscription"]
    has = {name for name in known if issubclass(kind, getattr(queue_lib, name))}
    assert has == set(protocols.split())


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_typical_use_type_checks() -> None:
    checked = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent",
            str(_HERE / "typing_api.py"),
        ],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
