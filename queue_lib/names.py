"""Names, ids and keys: their limits, and the ids that are derived from them."""

from __future__ import annotations

import os
import re
import time
from hashlib import sha1
from uuid import UUID

from queue_lib.errors import InvalidNameError, shown

__all__ = [
    "MAX_ID_LENGTH",
    "MAX_NAME_LENGTH",
    "dead_letter_copy_id",
    "delivery_id",
    "new_message_id",
    "validate_name",
    "validate_text",
]

MAX_NAME_LENGTH = 200
"""Longest topic or group name, in characters: names become index columns and lock keys."""

MAX_ID_LENGTH = 255
"""Longest message id or key, in bytes of UTF-8: both are stored in indexed columns."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}", re.ASCII)
_NAMESPACE = UUID("6f0c2a52-3c1e-4b8f-9a57-2f3a1e5d7c90").bytes


def validate_name(kind: str, name: object) -> None:
    """Check a topic or group name: 1 to `MAX_NAME_LENGTH` characters of ``[A-Za-z0-9._-]``.

    `kind` ("topic", "group", …) is what the error calls it.

    Raises:
        InvalidNameError: `name` is not a string, or is malformed.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidNameError(
            f"{kind} {shown(name)}: must be 1 to {MAX_NAME_LENGTH} characters of [A-Za-z0-9._-]"
        )


def validate_text(kind: str, value: object) -> None:
    """Check a message id or key: at most `MAX_ID_LENGTH` bytes of UTF-8, without NUL.

    The empty string passes: it means "none".

    Raises:
        InvalidNameError: `value` is not a string, too long, not encodable, or holds a NUL.
    """
    if not isinstance(value, str):
        raise InvalidNameError(f"{kind} {shown(value)}: must be a string")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidNameError(f"{kind} {shown(value)}: holds a lone surrogate") from None
    if size > MAX_ID_LENGTH:
        raise InvalidNameError(
            f"{kind} {shown(value)}: is {size} bytes of UTF-8, at most {MAX_ID_LENGTH} are allowed"
        )
    if "\0" in value:
        raise InvalidNameError(f"{kind} {shown(value)}: holds a NUL character")


def delivery_id(message_id: str, group: str) -> str:
    """Return the id of a message's delivery to a group: the same on every backend, for ever.

    It is the UUIDv5 of the message id, a NUL and the group. Handlers deduplicate on it.
    """
    # Not an f-string: it would take the name of an Enum member that is a `str` for its text.
    return _uuid5(message_id + "\0" + group)


def new_message_id() -> str:
    """Make the id of a message: a UUIDv7, which begins with the time.

    So ids go into their index where the last ones went. Random ones touch as many pages of it as a
    publish has messages: a third of the throughput, once a few hundred thousand are kept.
    """
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    fraction = rest * 4096 // 1_000_000  # of the millisecond, in 12 bits
    random = int.from_bytes(os.urandom(8)) >> 2
    text = f"{milliseconds:012x}7{fraction:03x}{0b10 << 62 | random:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def dead_letter_copy_id(delivery: str) -> str:
    """Return the id of the dead-letter copy of a delivery: publishing it twice stores it once."""
    return _uuid5(f"dlq\0{delivery}")


def _uuid5(name: str) -> str:
    # uuid.uuid5 by hand: it builds a UUID object for each claimed delivery, three times the cost.
    digest = bytearray(sha1(_NAMESPACE + name.encode(), usedforsecurity=False).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
