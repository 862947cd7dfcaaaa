"""Names, ids and keys: what is accepted, and the ids that are derived from them."""

from __future__ import annotations

import string
import time
import uuid
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_lib import InvalidNameError, delivery_id, validate_name
from queue_lib.names import dead_letter_copy_id, new_message_id, validate_text

NAMESPACE = uuid.UUID("6f0c2a52-3c1e-4b8f-9a57-2f3a1e5d7c90")
ALLOWED = frozenset(string.ascii_letters + string.digits + "._-")


class Topic(str, Enum):  # the kind whose f-string is its name and not its text
    ORDERS = "orders"


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "A-Z.0_9", "-", "..", "0", "x" * 200, Topic.ORDERS])
def test_a_name_of_allowed_characters_passes(name: str) -> None:
    validate_name("topic", name)


@pytest.mark.parametrize(
    "name",
    [
        "", "x" * 201, "a b", " a", "a ", "a\n", "\na", "a\0", "a/b", "a:b", "a*",
        "café", "cafe\u0301", "\uff41", "\u0661", "\u212a", "\ud800",
        None, 5, True, b"orders", ["orders"], Unprintable(), "x" * 5_000_000, 10**5000,
    ],
    ids=lambda name: ascii(name)[:20] if not isinstance(name, Unprintable | int) else "object",
)  # fmt: skip
def test_any_other_name_is_refused_in_short_words(name: object) -> None:
    with pytest.raises(InvalidNameError, match=r"^group .*1 to 200 characters of ") as caught:
        validate_name("group", name)
    assert len(str(caught.value)) < 250
    assert str(caught.value).isascii()


@given(st.text(st.sampled_from([*sorted(ALLOWED), "é", " ", "\n", "\u0661", "/"]), max_size=210))
def test_a_name_passes_exactly_if_it_is_short_and_made_of_allowed_characters(name: str) -> None:
    assert _passes(validate_name, name) == (1 <= len(name) <= 200 and set(name) <= ALLOWED)


# -- ids and keys ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["", " ", "x" * 255, "é" * 127, "😀" * 63 + "xyz", "\x1e\x7f", "a\r\n", "\ufeff", "\u202e"],
    ids=lambda text: ascii(text)[:20],
)
def test_a_text_of_up_to_255_bytes_passes(text: str) -> None:
    validate_text("key", text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x" * 256, "is 256 bytes"),
        ("é" * 128, "is 256 bytes"),
        ("😀" * 64, "is 256 bytes"),
        ("x" * 5_000_000, "is 5000000 bytes"),
        ("\0", "NUL"),
        ("a\0b", "NUL"),
        ("\ud800", "surrogate"),
        ("\ud83d\ude00", "surrogate"),  # a pair: UTF-8 has no such thing, JSON would merge it
        (None, "must be a string"),
        (b"k", "must be a string"),
        (7, "must be a string"),
        (Unprintable(), "must be a string"),
    ],
    ids=lambda value: ascii(value)[:20] if not isinstance(value, Unprintable) else "object",
)
def test_any_other_text_is_refused_in_short_words(text: object, why: str) -> None:
    with pytest.raises(InvalidNameError, match=f"^key .*{why}") as caught:
        validate_text("key", text)
    assert len(str(caught.value)) < 250


@given(st.text(st.characters() | st.sampled_from(["\0", "\ud800", "😀"]), max_size=300))
def test_a_text_passes_exactly_if_it_is_short_utf_8_without_nul(text: str) -> None:
    encoded = text.encode(errors="surrogatepass")
    storable = not any("\ud800" <= character <= "\udfff" for character in text)
    assert _passes(validate_text, text) == (len(encoded) <= 255 and storable and "\0" not in text)


# -- derived ids -------------------------------------------------------------------------------


@given(st.text(), st.text())
def test_a_delivery_id_is_the_uuid5_of_message_id_nul_and_group(message: str, group: str) -> None:
    assert delivery_id(message, group) == str(uuid.uuid5(NAMESPACE, f"{message}\0{group}"))


@given(st.text())
def test_a_copys_id_is_the_uuid5_of_dlq_nul_and_the_delivery_id(delivery: str) -> None:
    assert dead_letter_copy_id(delivery) == str(uuid.uuid5(NAMESPACE, f"dlq\0{delivery}"))


def test_derived_ids_never_change() -> None:
    delivery = delivery_id("order-42", "billing")
    assert delivery == "9c1309be-2ccc-555f-9be2-05e8b5aec116"
    assert dead_letter_copy_id(delivery) == "8b11d074-ff74-52f8-a372-ff97a52b6d04"


def test_an_enum_member_counts_as_its_text() -> None:
    assert delivery_id(Topic.ORDERS, Topic.ORDERS) == delivery_id("orders", "orders")


def test_no_normalisation_merges_two_ids() -> None:
    ids = ["cafe\u0301", "caf\u00e9", "CAFÉ", "café ", " café", "café"]
    assert len({delivery_id(id_, "g") for id_ in ids}) == len(set(ids)) == 5


def _passes(check: object, value: str) -> bool:
    assert callable(check)
    try:
        check("field", value)
    except InvalidNameError:
        return False
    return True


def test_message_ids_are_uuids_in_the_order_of_time():
    before = time.time_ns() // 1_000_000
    ids = [new_message_id() for _ in range(10_000)]
    after = time.time_ns() // 1_000_000
    parsed = [uuid.UUID(text) for text in ids]
    assert [str(each) for each in parsed] == ids
    assert {(each.version, each.variant) for each in parsed} == {(7, uuid.RFC_4122)}
    assert all(before <= each.int >> 80 <= after for each in parsed)
    times = [text[:18] for text in ids]
    assert times == sorted(times)
    assert len(set(ids)) == len(ids)
    assert len({text[19:] for text in ids}) == len(ids)
