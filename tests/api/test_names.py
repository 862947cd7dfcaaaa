"""The public names: all there, in order, documented, and nothing else."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types

import pytest

import queue_lib

# The names that the contract fixes; more may be added.
_FIXED = """
open_queue new_queue new_store_queue register registered Config EngineConfig LogStoreQueueConfig
MemoryQueueConfig Dependencies Message Delivery Claimed ClaimRequest Stats PurgePolicy
SubscribeOptions StartFrom QueueType Queue Publisher Subscriber Subscription Store ConsumeChecker
WakeSource DistributedLocker ProcessLocker Permanent is_permanent delivery_id validate_name
QueueError QueueClosedError UnsupportedError LockerRequiredError InvalidNameError
PayloadTooLargeError ScheduleTooFarError DeadLetterLoopError StoreError StoreUnavailableError
SchemaError DEFAULT_CONCURRENCY DEFAULT_BATCH_SIZE DEFAULT_POLL_INTERVAL DEFAULT_LEASE_DURATION
DEFAULT_MAX_ATTEMPTS DEFAULT_BACKOFF_BASE DEFAULT_BACKOFF_MAX DEFAULT_RETENTION_HOURS
DEFAULT_ACKED_RETENTION_HOURS DEFAULT_JANITOR_INTERVAL DEFAULT_MAX_PAYLOAD_BYTES
HEADER_DEAD_LETTER_SOURCE_TOPIC HEADER_DEAD_LETTER_GROUP HEADER_DEAD_LETTER_DELIVERY_ID
HEADER_DEAD_LETTER_MESSAGE_ID HEADER_DEAD_LETTER_ATTEMPTS HEADER_DEAD_LETTER_ERROR
MAX_NAME_LENGTH MAX_ID_LENGTH
""".split()

_OF_EXTRAS = {"clickhouse_driver", "clickhouse_sqlalchemy", "redis", "requests"}

_MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(queue_lib.__path__, "queue_lib.")
    if not module.ispkg and module.name != "queue_lib.__main__"
)


def test_the_contracts_names_are_there():
    assert set(_FIXED) <= set(queue_lib.__all__)


@pytest.mark.parametrize("name", ["queue_lib", *_MODULES])
def test_all_is_sorted_and_true(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _OF_EXTRAS:
            raise
        pytest.skip(f"{error.name} is not installed")
    constants = [public for public in module.__all__ if public.isupper()]
    classes = [public for public in module.__all__ if public[0].isupper() and not public.isupper()]
    others = [public for public in module.__all__ if public[0].islower()]
    assert module.__all__ == [*sorted(constants), *sorted(classes), *sorted(others)]
    assert all(hasattr(module, public) for public in module.__all__)


def test_nothing_else_is_public():
    public = {
        name
        for name, value in vars(queue_lib).items()
        if not name.startswith("_")
        and not isinstance(value, types.ModuleType)
        and name != "annotations"
    }
    assert public == set(queue_lib.__all__)


@pytest.mark.parametrize("name", queue_lib.__all__)
def test_everything_public_is_documented(name):
    value = getattr(queue_lib, name)
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return  # a constant: its docstring is for the reader of the source
    assert value.__doc__, name
    if not inspect.isclass(value):
        return
    for member, method in vars(value).items():
        if inspect.isfunction(method) and not member.startswith("_"):
            assert method.__doc__, f"{name}.{member}"
