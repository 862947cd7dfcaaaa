"""Check messages before anything is written, and fill in what the producer left empty."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from queue_lib.errors import (
    InvalidMessageError,
    InvalidRequestError,
    PayloadTooLargeError,
    ScheduleTooFarError,
    shown,
)
from queue_lib.message import Delivery, Message
from queue_lib.names import new_message_id, validate_name, validate_text

__all__ = ["MAX_HEADERS_BYTES", "check_messages", "fill_in"]

MAX_HEADERS_BYTES = 64 * 1024
"""Largest set of headers of one message, encoded as JSON."""


def check_messages(
    messages: Sequence[Message], *, max_payload_bytes: int, retention: timedelta
) -> None:
    """Check every message, in the order topic, id, key, headers, payload, schedule, priority.

    Raises:
        InvalidRequestError: of the first message that cannot be stored; nothing was changed. It
            tells the place of the message, from 1, if there are several.
    """
    horizon = datetime.now(UTC) + retention
    for place, message in enumerate(messages, 1):
        try:
            _check_message(message, max_payload_bytes, horizon)
        except InvalidRequestError as error:
            if len(messages) > 1:
                error.args = (f"message {place}: {error}",)
            raise


def fill_in(messages: Sequence[Message]) -> None:
    """Set `id` and `published_at` where they are empty: a retried call is then idempotent."""
    now = datetime.now(UTC)
    for message in messages:
        if not message.id:
            message.id = new_message_id()
        if message.published_at is None:
            message.published_at = now


def _check_message(message: object, max_payload_bytes: int, horizon: datetime) -> None:
    if not isinstance(message, Message):
        raise InvalidMessageError(f"message {type(message).__name__}: must be a Message")
    if isinstance(message, Delivery):
        # Its id is stored, so nothing would be, without a word.
        raise InvalidMessageError(
            "message Delivery: was published already; to have it handled again, publish a new "
            "Message with its topic, payload, key and headers, but not with its id"
        )
    validate_name("topic", message.topic)
    validate_text("id", message.id)
    validate_text("key", message.key)
    if message.headers is not None:
        _check_headers(message.headers)
    _check_payload(message.payload, max_payload_bytes)
    _check_schedule(message, horizon)
    _check_priority(message.priority)


def _check_headers(headers: object) -> None:
    if not isinstance(headers, dict):
        raise InvalidMessageError(f"headers {type(headers).__name__}: must be a dict")
    for name, value in headers.items():
        for what, text in (("name", name), ("value", value)):
            if not isinstance(text, str):
                raise InvalidMessageError(
                    f"headers {what} {shown(text)} of {shown(name)}: must be a string"
                )
            if not _is_unicode(text):
                raise InvalidMessageError(
                    f"headers {what} of {shown(name)}: holds a lone surrogate"
                )
    size = len(json.dumps(headers, separators=(",", ":")))
    if size > MAX_HEADERS_BYTES:
        raise PayloadTooLargeError(
            f"headers: {size:,} bytes encoded, at most {MAX_HEADERS_BYTES:,} are allowed",
            size=size,
            limit=MAX_HEADERS_BYTES,
        )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_payload(payload: object, limit: int) -> None:
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidMessageError(f"payload {type(payload).__name__}: must be bytes")
    size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    if size > limit:
        raise PayloadTooLargeError(
            f"payload: {size:,} bytes, at most {limit:,} are allowed", size=size, limit=limit
        )


def _check_schedule(message: Message, horizon: datetime) -> None:
    for field in ("deliver_at", "published_at"):
        instant = getattr(message, field)
        if instant is None:
            continue
        if not isinstance(instant, datetime):
            raise InvalidMessageError(f"{field} {shown(instant)}: must be a datetime")
        if instant.utcoffset() is None:
            raise InvalidMessageError(f"{field} {instant}: has no time zone")
        if field == "deliver_at" and instant > horizon:
            raise ScheduleTooFarError(
                f"deliver_at {instant}: later than the retention allows, {horizon}",
                deliver_at=instant,
                horizon=horizon,
            )
        try:
            instant.astimezone(UTC)
        except OverflowError:  # stored, it could not be read: every claim of its topic would fail
            raise InvalidMessageError(
                f"{field} {instant}: is not in the years 1 to 9999 of UTC"
            ) from None


def _check_priority(priority: object) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise InvalidMessageError(f"priority {shown(priority)}: must be a whole number")
    if not -(1 << 31) <= priority < 1 << 31:
        raise InvalidMessageError(f"priority {shown(priority)}: must be a number of 32 bits")
