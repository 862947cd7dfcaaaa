"""What becomes of a run whose handler failed: retry, or dead letter.

Runs in the handler's thread, so a failing delivery keeps its slot until its outcome is written.
Acknowledgements are not written here: the pump batches them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from queue_lib.engine.run import Run
from queue_lib.errors import (
    Permanent,
    QueueClosedError,
    StoreUnavailableError,
    is_permanent,
)
from queue_lib.logs import get_logger
from queue_lib.message import (
    HEADER_DEAD_LETTER_ATTEMPTS,
    HEADER_DEAD_LETTER_DELIVERY_ID,
    HEADER_DEAD_LETTER_ERROR,
    HEADER_DEAD_LETTER_GROUP,
    HEADER_DEAD_LETTER_MESSAGE_ID,
    HEADER_DEAD_LETTER_SOURCE_TOPIC,
    Message,
)
from queue_lib.names import dead_letter_copy_id
from queue_lib.options import SubscribeOptions
from queue_lib.stores.base import Claimed, Store

__all__ = ["MAX_ERROR_BYTES", "Settler", "error_text"]

T = TypeVar("T")

MAX_ERROR_BYTES = 2048
"""Longest error text that is stored, in bytes of UTF-8."""

_logger = get_logger("queue_lib.engine")

# Stands before the error text of a delivery whose dead-letter copy could not be published: its
# next claim, in whichever process, publishes the copy and does not run the handler. A handler's
# own text cannot hold it, because `error_text` removes the separator.
_SEPARATOR = "\x1e"


class Settler:
    """Writes the outcomes of failed runs of one subscription. Thread-safe."""

    def __init__(
        self,
        store: Store,
        options: SubscribeOptions,
        publish: Callable[[Message], None],
        retry_due: Callable[[timedelta], None],
    ) -> None:
        self._store = store
        self._options = options
        self._publish = publish  # stores a message that needs no checks, and wakes its topic
        self._retry_due = retry_due  # told when a retry of ours becomes due
        self._hurry = threading.Event()  # set when the subscription ends: do not wait for faults

    def hurry(self) -> None:
        """The subscription ends: an outcome that cannot be written now is given up."""
        self._hurry.set()

    def is_spent(self, claim: Claimed) -> bool:
        """Say whether the claim must be dead-lettered without running its handler."""
        return claim.attempt > self._options.max_attempts or claim.last_error.startswith(_SEPARATOR)

    def bury_spent(self, run: Run) -> None:
        """Dead-letter a claim whose handler must not run (again)."""
        claim = run.claim
        if claim.last_error.startswith(_SEPARATOR):
            _, spent, text = claim.last_error.split(_SEPARATOR, 2)
            self._bury(run, int(spent), text)
            return
        attempts = claim.attempt - 1
        text = f"attempt {attempts} ended without an outcome: its lease expired"
        if claim.last_error:
            text = f"{text}; before that: {claim.last_error}"
        self._bury(run, attempts, _cut(text))

    def fail(self, run: Run, error: BaseException) -> None:
        """Retry the delivery, or dead-letter it if `error` or the attempts say so."""
        claim, text = run.claim, error_text(error)
        if claim.attempt >= self._options.max_attempts or is_permanent(error):
            self._bury(run, claim.attempt, text)
        else:
            self._retry(run, text)

    def _retry(self, run: Run, text: str) -> None:
        backoff = self._options.backoff(run.claim.attempt)
        if self._write(run, "retry", lambda: self._store.retry(run.claim, backoff, text)):
            self._retry_due(backoff)

    def _bury(self, run: Run, attempts: int, text: str) -> None:
        claim, store, topic = run.claim, self._store, self._options.dead_letter_topic
        if topic is not None:
            # A claim that was lost must not publish: the copy belongs to whoever holds it now.
            lease = self._options.lease_duration
            asked = time.monotonic()
            if not self._write(run, "extend", lambda: store.extend([claim], lease)):
                return
            run.held_until = asked + lease.total_seconds()
            copy = _dead_letter_copy(claim, topic, attempts, text)
            try:
                self._publish(copy)
            except Exception as error:  # noqa: BLE001 - a store is foreign code
                _logger.warning(
                    "delivery %s of %s to %s: its dead-letter copy was not stored, it is tried "
                    "again: %s",
                    claim.delivery_id, claim.message.topic, claim.group, error,
                )  # fmt: skip
                self._retry(run, f"{_SEPARATOR}{attempts}{_SEPARATOR}{text}")
                return
        # The copy comes first: a crash between the two leaves a delivery that is buried again,
        # with a copy of the same id. The other order could lose the copy.
        if self._write(run, "kill", lambda: store.kill(claim, text)):
            _logger.warning(
                "delivery %s of %s to %s is dead after %d attempts: %s",
                claim.delivery_id, claim.message.topic, claim.group, attempts, text,
            )  # fmt: skip

    def _write(self, run: Run, what: str, write: Callable[[], T]) -> T | None:
        """Write an outcome, again while a fault may pass and the lease holds.

        Returns what the store answered; `None` after giving up, when the lease is left to end.
        """
        pause = 0.05
        while True:
            try:
                held = write()
            except QueueClosedError:
                return None
            except Exception as error:
                now = time.monotonic()
                if run.renew_until is None:
                    run.renew_until = now + self._options.lease_duration.total_seconds()
                passing = isinstance(error, StoreUnavailableError)
                if not passing or now > max(run.held_until, run.renew_until):
                    _logger.exception(
                        "%s of delivery %s failed; its lease is left to end",
                        what, run.claim.delivery_id,
                    )  # fmt: skip
                    return None
                _logger.warning("%s of delivery %s failed: %s", what, run.claim.delivery_id, error)
            else:
                if not held:  # the heartbeat says nothing of a run whose outcome is being written
                    _logger.warning(
                        "delivery %s of %s to %s (attempt %d): its lease was lost before its "
                        "failure was written (%s)",
                        run.claim.delivery_id, run.claim.message.topic, run.claim.group,
                        run.claim.attempt, what,
                    )  # fmt: skip
                return held
            if self._hurry.wait(pause):
                return None
            pause = min(pause * 2, 5.0)


def _dead_letter_copy(claim: Claimed, topic: str, attempts: int, text: str) -> Message:
    source = claim.message
    headers = dict(source.headers or {})
    headers[HEADER_DEAD_LETTER_SOURCE_TOPIC] = source.topic
    headers[HEADER_DEAD_LETTER_GROUP] = claim.group
    headers[HEADER_DEAD_LETTER_DELIVERY_ID] = claim.delivery_id
    headers[HEADER_DEAD_LETTER_MESSAGE_ID] = source.id
    headers[HEADER_DEAD_LETTER_ATTEMPTS] = str(attempts)
    headers[HEADER_DEAD_LETTER_ERROR] = text
    return Message(
        topic,
        source.payload,
        source.key,
        dead_letter_copy_id(claim.delivery_id),
        headers,
        published_at=datetime.now(UTC),
        priority=source.priority,
    )


def error_text(error: BaseException) -> str:
    """Describe an exception in text that every store can hold: at most `MAX_ERROR_BYTES`."""
    name, said = "Exception", "(its text could not be read)"
    # A handler's exception is foreign code, down to the name of its class.
    with suppress(BaseException):
        if isinstance(error, Permanent) and error.args and isinstance(error.args[0], BaseException):
            error = error.args[0]  # what was wrapped says more than the verdict
        name = str(type(error).__name__)
        said = str(error)
    text = f"{name}: {said[:MAX_ERROR_BYTES]}" if said else name
    return _cut(text.replace("\0", "\N{REPLACEMENT CHARACTER}").replace(_SEPARATOR, " "))


def _cut(text: str) -> str:
    """Cut a text to `MAX_ERROR_BYTES`, on a character."""
    return text.encode(errors="replace")[:MAX_ERROR_BYTES].decode(errors="ignore")
