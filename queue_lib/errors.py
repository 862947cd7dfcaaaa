"""Every error this library raises, as one tree.

::

    QueueError
    ├── QueueClosedError            the queue or subscription was closed
    ├── UnsupportedError            this backend cannot do that
    ├── LockerRequiredError         consuming here needs a shared locker
    ├── InvalidRequestError         the caller can fix it; nothing was written
    │   ├── InvalidNameError        a topic, group, id or key
    │   ├── InvalidMessageError     headers, payload type, priority or time of a message
    │   ├── InvalidOptionsError     a subscription option or a configuration value
    │   ├── PayloadTooLargeError    payload or headers above their limit
    │   ├── ScheduleTooFarError     due later than messages are retained
    │   └── DeadLetterLoopError     the dead-letter topic is the subscribed topic
    └── StoreError                  the backend failed; `__cause__` is the driver's exception
        ├── StoreUnavailableError   unreachable or lost a race: safe to try again
        └── SchemaError             tables are missing or of another release

`Permanent` is not in the tree: it is a verdict that a handler hands to the engine.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

__all__ = [
    "DeadLetterLoopError",
    "InvalidMessageError",
    "InvalidNameError",
    "InvalidOptionsError",
    "InvalidRequestError",
    "LockerRequiredError",
    "PayloadTooLargeError",
    "Permanent",
    "QueueClosedError",
    "QueueError",
    "ScheduleTooFarError",
    "SchemaError",
    "StoreError",
    "StoreUnavailableError",
    "UnsupportedError",
    "is_permanent",
    "shown",
]


class QueueError(Exception):
    """Base of every error that this library raises."""


class QueueClosedError(QueueError):
    """An operation was asked of a closed queue or subscription."""


class UnsupportedError(QueueError):
    """The backend, or a dependency it was given, cannot do what was asked."""


class LockerRequiredError(QueueError):
    """The backend needs a distributed locker to consume safely and has none."""


class InvalidRequestError(QueueError, ValueError):
    """The caller passed something that can never work; nothing was written."""


class InvalidNameError(InvalidRequestError):
    """A topic, group, id or key is malformed."""


class InvalidMessageError(InvalidRequestError):
    """A message carries headers, a payload, a priority or a time that cannot be stored."""


class InvalidOptionsError(InvalidRequestError):
    """A subscription option or a configuration value is out of bounds."""


class PayloadTooLargeError(InvalidRequestError):
    """A payload, or the encoded headers, exceed their limit.

    Attributes:
        size: bytes that the message carries.
        limit: bytes that are allowed.
    """

    def __init__(self, message: str, *, size: int, limit: int) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit

    def __reduce__(self) -> tuple[Any, ...]:
        # BaseException's own leaves the keywords out: the error could be pickled, never unpickled.
        return partial(type(self), size=self.size, limit=self.limit), self.args, self.__dict__


class ScheduleTooFarError(InvalidRequestError):
    """A message is scheduled further ahead than the queue retains messages.

    Attributes:
        deliver_at: when the message asked to be delivered.
        horizon: the latest instant that was allowed.
    """

    def __init__(self, message: str, *, deliver_at: datetime, horizon: datetime) -> None:
        super().__init__(message)
        self.deliver_at = deliver_at
        self.horizon = horizon

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(type(self), deliver_at=self.deliver_at, horizon=self.horizon)
        return again, self.args, self.__dict__


class DeadLetterLoopError(InvalidRequestError):
    """The dead-letter topic is the subscribed topic: each copy would fail again, for ever."""


class StoreError(QueueError):
    """The backend failed; `__cause__` is the driver's exception."""


class StoreUnavailableError(StoreError):
    """The backend could not be reached, or the write lost a race: safe to try again."""


class SchemaError(StoreError):
    """The tables are missing or of another release; the message names the command to run."""


class Permanent(Exception):  # noqa: N818 - a verdict of the handler, not an error of ours
    """Raise from a handler to dead-letter the delivery now, without further attempts.

    Wrap the reason, or give its text: ``raise Permanent(error)`` or ``raise Permanent("why")``.
    The marking also holds when another exception is raised from it.
    """

    def __init__(self, reason: BaseException | str = "") -> None:
        super().__init__(reason)
        if isinstance(reason, BaseException):
            self.__cause__ = reason


def is_permanent(error: BaseException | None) -> bool:
    """Say whether `error`, or any error that it was raised from, is a `Permanent`.

    Follows `__cause__` (what ``raise … from …`` sets) and the members of an exception group; an
    error that merely happened while a `Permanent` was being handled is not marked by it.
    """
    seen: set[int] = set()
    pending = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        if isinstance(current, Permanent):
            return True
        seen.add(id(current))
        # The attributes of somebody's exception may be properties, and raise.
        with suppress(Exception):
            pending.append(current.__cause__)
        if isinstance(current, BaseExceptionGroup):
            with suppress(Exception):
                pending.extend(current.exceptions)
    return False


def shown(value: object) -> str:
    """Return how an error shows what a caller passed: short, ASCII, and whatever it is."""
    try:
        text = ascii(value)
    except Exception:  # noqa: BLE001 - a foreign __repr__, or an int of thousands of digits
        return f"of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
