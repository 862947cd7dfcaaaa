"""What may be a handler: told at the subscribe, not by the first delivery."""

from __future__ import annotations

import contextlib
import functools
import queue
import re
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from queue_lib import InvalidOptionsError, Message, new_store_queue
from queue_lib.engine.handlers import check_handler
from queue_lib.stores.memory import MemoryStore


async def coroutine(delivery: object) -> None: ...


def generator(delivery: object) -> Any:
    yield delivery


async def async_generator(delivery: object) -> Any:
    yield delivery


class Service:
    def handle(self, delivery: object) -> None: ...

    async def coroutine(self, delivery: object) -> None: ...

    def generator(self, delivery: object) -> Any:
        yield delivery

    def without(self) -> None: ...

    @staticmethod
    def static(delivery: object) -> None: ...

    @classmethod
    def of_class(cls, delivery: object) -> None: ...


class Called:
    def __call__(self, delivery: object) -> None: ...


class CalledWithout:
    def __call__(self) -> None: ...


class CalledCoroutine:
    async def __call__(self, delivery: object) -> None: ...


class CalledGenerator:
    def __call__(self, delivery: object) -> Any:
        yield delivery


class CalledAsyncGenerator:
    async def __call__(self, delivery: object) -> Any:
        yield delivery


class Made:
    def __init__(self, delivery: object) -> None: ...


def with_database(function: Callable[[object, object], None]) -> Callable[[object], None]:
    @functools.wraps(function)
    def handle(delivery: object) -> None:
        function(delivery, "database")

    return handle


@with_database
def supplied(delivery: object, database: object) -> None: ...


@contextlib.contextmanager
def context(delivery: object) -> Any:
    yield delivery


def two(first: object, second: object) -> None: ...


def keyword(*, delivery: object) -> None: ...


def optional(delivery: object = None, *more: object, **fields: object) -> None: ...


LAZY = [
    coroutine, generator, async_generator, partial(coroutine), partial(partial(generator)),
    Service().coroutine, Service().generator, partial(Service().coroutine), CalledCoroutine(),
    CalledGenerator(), CalledAsyncGenerator(), partial(CalledCoroutine()), AsyncMock(),
]  # fmt: skip
UNCALLABLE = [
    lambda: None, two, keyword, CalledWithout(), Service().without, Service.handle, object,
    partial(two), partial(two, 1, 2), partial(keyword, delivery=1),
]  # fmt: skip
SOUND = [
    lambda delivery: None, lambda *all_of_them: None, optional, print, len, queue.SimpleQueue().put,
    [].append, {}.setdefault, Service().handle, Service().static, Service.static, Service.of_class,
    Called(), Made, partial(two, 1), partial(two, second=1), supplied, partial(supplied), context,
    Mock(), str, dict.fromkeys,
]  # fmt: skip


def name(handler: object) -> str:
    return re.sub(r" at 0x\w+| id='[0-9]+'|<|>", "", repr(handler))


@pytest.mark.parametrize("handler", LAZY, ids=name)
def test_what_runs_nothing_when_it_is_called_is_refused(handler: object) -> None:
    with pytest.raises(InvalidOptionsError, match=r"^handler .*: must be a plain function, neith"):
        check_handler(handler)


@pytest.mark.parametrize("handler", UNCALLABLE, ids=name)
def test_what_takes_no_delivery_is_refused(handler: object) -> None:
    with pytest.raises(InvalidOptionsError, match=r"^handler .*: must take one argument, the del"):
        check_handler(handler)


@pytest.mark.parametrize("handler", [None, "handle", 5, Service(), [print]], ids=name)
def test_what_cannot_be_called_is_refused(handler: object) -> None:
    with pytest.raises(InvalidOptionsError, match=r"^handler .*: must be callable$"):
        check_handler(handler)


@pytest.mark.parametrize("handler", SOUND, ids=name)
def test_whatever_takes_a_delivery_may_handle_it(handler: object) -> None:
    check_handler(handler)


def test_it_is_told_before_anything_is_registered() -> None:
    store = MemoryStore()
    with new_store_queue(store) as opened:
        wrong: list[Any] = [coroutine, lambda: None, None]
        for handler in wrong:
            with pytest.raises(InvalidOptionsError, match=r"^handler "):
                opened.subscribe("orders", "billing", handler)
            with pytest.raises(InvalidOptionsError, match=r"^handler "):
                opened.subscriber("orders", "billing")(handler)
        opened.publish(Message("orders"))
        assert opened.stats("orders", "billing").pending == 0
        assert opened.health().subscriptions == ()
