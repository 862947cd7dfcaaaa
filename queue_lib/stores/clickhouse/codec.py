"""Values as SQL text, and payloads as text that both drivers carry exactly.

Raw bytes do not survive every pair of drivers: over HTTP they cannot be bound, and the native
driver returns str or bytes by what is in them. Text does.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["chunks", "decode_payload", "encode_payload", "literal"]

_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
_MAX_LIST = 100_000  # characters: the whole query may have 256 KiB by default


def encode_payload(payload: bytes) -> str:
    """Return ``u`` and the text if it is text, else ``b`` and base64: readable in SQL."""
    try:
        return "u" + payload.decode()
    except UnicodeDecodeError:
        return "b" + base64.b64encode(payload).decode()


def decode_payload(text: str) -> bytes:
    """Undo `encode_payload`."""
    return base64.b64decode(text[1:]) if text[:1] == "b" else text[1:].encode()


def literal(value: Any) -> str:
    """Write a value as SQL; a list as the inside of an IN."""
    if isinstance(value, str):
        return f"'{value.translate(_ESCAPES)}'"
    if isinstance(value, int):
        return str(int(value))
    return ",".join(map(literal, value))


def chunks(values: Iterable[Any]) -> Iterator[list[Any]]:
    """Split a list so that the literals of each part fit into a query."""
    part: list[Any] = []
    size = 0
    for value in values:
        length = len(literal(value).encode()) + 1
        if part and size + length > _MAX_LIST:
            yield part
            part, size = [], 0
        part.append(value)
        size += length
    if part:
        yield part
