"""The error tree, what errors carry and survive, and the verdict `Permanent`."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest

from queue_lib import errors
from queue_lib.errors import (
    PayloadTooLargeError,
    Permanent,
    QueueError,
    ScheduleTooFarError,
    is_permanent,
    shown,
)

TREE: dict[str, tuple[str, ...]] = {
    "QueueError": (
        "QueueClosedError", "UnsupportedError", "LockerRequiredError", "InvalidRequestError",
        "StoreError",
    ),
    "InvalidRequestError": (
        "InvalidNameError", "InvalidMessageError", "InvalidOptionsError", "PayloadTooLargeError",
        "ScheduleTooFarError", "DeadLetterLoopError",
    ),
    "StoreError": ("StoreUnavailableError", "SchemaError"),
}  # fmt: skip
E = TypeVar("E", bound=BaseException)
NOW, LATER = datetime(2026, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)


def make(kind: type[QueueError]) -> QueueError:
    facts: dict[str, Any] = {}
    if kind is PayloadTooLargeError:
        facts = {"size": 11, "limit": 10}
    elif kind is ScheduleTooFarError:
        facts = {"deliver_at": LATER, "horizon": NOW}
    return kind("what happened", **facts)


CLASSES = [
    kind
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and issubclass(kind, QueueError)
]


# -- the tree ----------------------------------------------------------------------------------


def test_the_tree_is_the_one_in_the_docstring() -> None:
    assert {kind.__name__ for kind in CLASSES} == {"QueueError"}.union(*TREE.values())
    for parent, children in TREE.items():
        for child in children:
            assert getattr(errors, child).__bases__[0] is getattr(errors, parent)
            assert child in str(errors.__doc__)


def test_what_the_caller_can_fix_is_a_value_error_and_nothing_else_is() -> None:
    for kind in CLASSES:
        assert issubclass(kind, ValueError) == issubclass(kind, errors.InvalidRequestError)


def test_permanent_is_a_verdict_and_not_one_of_our_errors() -> None:
    assert not issubclass(Permanent, QueueError)
    assert issubclass(Permanent, Exception)


def copies(error: BaseException) -> Iterator[Any]:
    yield copy.copy(error)
    yield copy.deepcopy(error)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        yield pickle.loads(pickle.dumps(error, protocol))  # noqa: S301


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: str(kind.__name__))
def test_an_error_survives_copying_and_pickling_with_its_facts(kind: type[QueueError]) -> None:
    error = make(kind)
    error.add_note("seen by the worker")
    for twin in copies(error):
        assert type(twin) is kind
        assert str(twin) == "what happened"
        assert twin.args == error.args
        assert vars(twin) == vars(error)


def test_errors_carry_their_facts() -> None:
    size = PayloadTooLargeError("big", size=11, limit=10)
    assert (size.size, size.limit) == (11, 10)
    schedule = ScheduleTooFarError("far", deliver_at=LATER, horizon=NOW)
    assert (schedule.deliver_at, schedule.horizon) == (LATER, NOW)


# -- Permanent ---------------------------------------------------------------------------------


def raised(error: E, *, cause: BaseException | None = None) -> E:
    """Raise and catch, so that the interpreter sets cause and context as it does for users."""
    with pytest.raises(type(error)) as caught:
        raise error from cause
    assert caught.value is error
    return error


def test_permanent_wraps_an_error_or_a_text() -> None:
    reason = KeyError("order")
    assert Permanent(reason).__cause__ is reason
    assert str(Permanent(reason)) == "'order'"
    assert str(Permanent("unknown customer")) == "unknown customer"
    assert str(Permanent()) == ""
    for twin in copies(Permanent(reason)):
        assert is_permanent(twin)
        assert isinstance(twin.__cause__, KeyError)


@pytest.mark.parametrize(
    "error",
    [
        Permanent(),
        Permanent("why"),
        Permanent(ValueError("why")),
        raised(ValueError(), cause=Permanent()),
        raised(ValueError(), cause=raised(KeyError(), cause=Permanent("deep"))),
        ExceptionGroup("many", [ValueError(), Permanent()]),
        ExceptionGroup("many", [ExceptionGroup("inner", [KeyError(), Permanent()])]),
        BaseExceptionGroup("many", [KeyboardInterrupt(), Permanent()]),
        raised(ValueError(), cause=ExceptionGroup("many", [raised(KeyError(), cause=Permanent())])),
        raised(SystemExit(1), cause=Permanent()),
    ],
    ids=repr,
)
def test_an_error_is_permanent_if_anything_it_was_raised_from_is(error: BaseException) -> None:
    assert is_permanent(error)


def test_other_errors_are_not_permanent() -> None:
    for error in (None, ValueError(), raised(ValueError(), cause=KeyError()), KeyboardInterrupt()):
        assert not is_permanent(error)
    assert not is_permanent(ExceptionGroup("many", [ValueError(), KeyError()]))


def test_an_error_while_a_permanent_was_handled_is_not_marked_by_it() -> None:
    def refuse() -> None:
        raise Permanent

    def handle() -> None:
        try:
            refuse()
        finally:
            int("the clean-up has a bug")

    with pytest.raises(ValueError, match="clean-up") as caught:
        handle()
    assert isinstance(caught.value.__context__, Permanent)
    assert not is_permanent(caught.value)


def test_circles_and_long_chains_come_to_an_end() -> None:
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    assert not is_permanent(first)
    third = ExceptionGroup("many", [first])
    second.__cause__ = third
    assert not is_permanent(third)

    chain: BaseException = Permanent()
    for _ in range(5_000):
        link = ValueError()
        link.__cause__, chain = chain, link
    assert is_permanent(chain)
    while chain.__cause__ is not None:  # or freeing it would recurse
        chain = chain.__cause__


# -- showing values ----------------------------------------------------------------------------


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("é\n", r"'\xe9\n'"),
        ("\ud800", r"'\ud800'"),
        (5, "5"),
        (None, "None"),
        (10**5000, "of type int"),
        (Unprintable(), "of type Unprintable"),
        ([Unprintable()], "of type list"),
        ("x" * 5_000_000, "'" + "x" * 76 + "..."),
    ],
    ids=range(8),
)
def test_any_value_can_be_shown_in_a_short_line(value: object, text: str) -> None:
    assert shown(value) == text
