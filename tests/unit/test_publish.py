"""What is checked before anything is written, in which order, and what is filled in."""

from __future__ import annotations

import array
import json
import pickle
from datetime import UTC, date, datetime, timedelta, timezone
from enum import IntEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_lib import (
    Delivery,
    EngineConfig,
    InvalidMessageError,
    InvalidNameError,
    InvalidRequestError,
    Message,
    PayloadTooLargeError,
    ScheduleTooFarError,
    UnsupportedError,
    new_store_queue,
)
from queue_lib.engine.publish import MAX_HEADERS_BYTES, check_messages, fill_in
from queue_lib.stores.memory import MemoryStore

RETENTION = timedelta(days=7)
LIMIT = 100
WEST, EAST = timezone(timedelta(hours=-23, minutes=-59)), timezone(timedelta(hours=23, minutes=59))


class Urgency(IntEnum):
    HIGH = 0


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def message(**fields: Any) -> Message:
    return Message(**({"topic": "orders"} | fields))


def check(*messages: object) -> None:
    check_messages(messages, max_payload_bytes=LIMIT, retention=RETENTION)  # type: ignore[arg-type]


def refuse(kind: type[InvalidRequestError], why: str, **fields: Any) -> InvalidRequestError:
    with pytest.raises(kind, match=why) as caught:
        check(message(**fields))
    assert len(str(caught.value)) < 300
    assert type(caught.value) is kind
    return caught.value


# -- the whole call ----------------------------------------------------------------------------


def test_faults_are_told_in_the_order_of_the_contract() -> None:
    faulty = message(
        topic="no topic",
        id="x" * 256,
        key="\0",
        headers={"a": "\ud800"},
        payload=b"x" * (LIMIT + 1),
        deliver_at=datetime(2026, 1, 1),  # noqa: DTZ001 - naive on purpose
        priority=1.5,
    )
    for field, repaired in [
        ("topic", "orders"), ("id", ""), ("key", ""), ("headers", {}), ("payload", b""),
        ("deliver_at", None), ("priority", 0),
    ]:  # fmt: skip
        with pytest.raises(InvalidRequestError, match=f"^{field}"):
            check(faulty)
        setattr(faulty, field, repaired)
    check(faulty)


def test_one_bad_message_refuses_the_whole_call_and_nothing_is_filled_in() -> None:
    store = MemoryStore()
    with new_store_queue(store, EngineConfig(max_payload_bytes=LIMIT)) as queue:
        queue.subscribe("orders", "billing", print).close(0)
        good, bad = message(), message(payload=b"x" * (LIMIT + 1))
        for call in ([bad, good], [good, bad], [good, message(topic=""), good]):
            with pytest.raises(InvalidRequestError):
                queue.publish(*call)
        with pytest.raises(UnsupportedError):
            queue.publish(good, connection=object())
        assert good == message()
        assert bad == message(payload=b"x" * (LIMIT + 1))
        assert queue.stats("orders", "billing").pending == 0
        queue.publish(good)
        assert queue.stats("orders", "billing").pending == 1
        queue.publish()


@pytest.mark.parametrize(
    "wrong", [None, "orders", b"orders", {"topic": "orders"}, Message, object(), Unprintable()]
)
def test_what_is_no_message_is_refused(wrong: object) -> None:
    for given_ in (wrong, [message()], (message(),), iter([message()])):
        with pytest.raises(InvalidMessageError, match=r"must be a Message$"):
            check(message(), given_)


def test_a_delivery_is_no_message_to_publish_again() -> None:
    """It has the id of what is stored, so nothing would be stored, without a word."""
    with pytest.raises(InvalidMessageError, match=r"^message Delivery: .* a new Message .*its id$"):
        check(Delivery("orders", b"1", id="m-1", delivery_id="d-1"))


def test_one_of_several_is_told_by_its_place() -> None:
    batches: list[tuple[list[object], str]] = [
        ([message(payload="1")], r"^payload str: must be bytes$"),
        ([message(), message(), message(payload="1")], r"^message 3: payload str: must be bytes$"),
        ([message(topic=""), message(topic="")], r"^message 1: topic '': "),
        ([message(), "orders"], r"^message 2: message str: must be a Message$"),
    ]
    for batch, why in batches:
        with pytest.raises(InvalidRequestError, match=why):
            check(*batch)
    with pytest.raises(PayloadTooLargeError, match=r"^message 2: payload: 101 b") as caught:
        check(message(), message(payload=b"x" * (LIMIT + 1)))
    assert (caught.value.size, caught.value.limit) == (LIMIT + 1, LIMIT)
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert str(again) == str(caught.value)


@pytest.mark.parametrize("field", ["topic", "id", "key"])
def test_names_and_texts_are_checked(field: str) -> None:
    for value in (None, 5, b"a", "\0", "\ud800", "x" * 256, Unprintable()):
        refuse(InvalidNameError, f"^{field} ", **{field: value})


def test_a_blank_is_a_key() -> None:
    check(message(key=" "), message(key="\t"), message(id=" "))


# -- headers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ([("a", "b")], "^headers list: must be a dict$"),
        ("a=b", "^headers str: must be a dict$"),
        (MappingProxyType({"a": "b"}), "^headers mappingproxy: must be a dict$"),
        ({"a": 1}, "^headers value 1 of 'a': must be a string$"),
        ({"a": None}, "^headers value None of 'a': must be a string$"),
        ({"a": b"b"}, "^headers value b'b' of 'a': must be a string$"),
        ({"a": ["b"]}, "of 'a': must be a string$"),
        ({"a": 10**5000}, "^headers value of type int of 'a': must be a string$"),
        ({"a": Unprintable()}, "^headers value of type Unprintable of 'a': must be a string$"),
        ({1: "b"}, "^headers name 1 of 1: must be a string$"),
        ({None: "b"}, "^headers name None"),
        ({"a": "\ud800"}, "^headers value of 'a': holds a lone surrogate$"),
        ({"a": "\ud83d\ude00"}, "^headers value of 'a': holds a lone surrogate$"),
        ({"\udfff": "b"}, "^headers name of .* holds a lone surrogate$"),
    ],
    ids=range(14),
)
def test_headers_are_a_dict_of_text_to_text(headers: object, why: str) -> None:
    refuse(InvalidMessageError, why, headers=headers)


@given(
    st.dictionaries(
        st.text(st.characters() | st.just("\ud83d"), max_size=5),
        st.text(st.characters() | st.sampled_from(["\0", "\udc00"]), max_size=5),
    )
)
def test_headers_that_pass_come_back_from_json_as_they_were(headers: dict[str, str]) -> None:
    try:
        check(message(headers=headers))
    except InvalidMessageError:
        assert "\\ud" in ascii(headers)
    else:
        assert json.loads(json.dumps(headers)) == headers


@pytest.mark.parametrize("character", ["x", "é", "😀", "\0", '"'])
def test_headers_count_as_encoded(character: str) -> None:
    count = (MAX_HEADERS_BYTES - len('{"a":""}')) // (len(json.dumps(character)) - 2)
    check(message(headers={"a": character * count}))
    too_many = {"a": character * (count + 1)}
    error = refuse(PayloadTooLargeError, "^headers: .* at most 65,536", headers=too_many)
    assert isinstance(error, PayloadTooLargeError)
    assert error.limit == MAX_HEADERS_BYTES
    assert error.size == len(json.dumps(too_many, separators=(",", ":")))


def test_headers_of_megabytes_or_of_many_names_are_refused() -> None:
    refuse(PayloadTooLargeError, "^headers: 2,000,", headers={"a": "x" * 2_000_000})
    refuse(PayloadTooLargeError, "^headers: ", headers={str(n): "" for n in range(20_000)})


# -- payload -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_payload_is_any_kind_of_bytes_up_to_the_limit(kind: Any) -> None:
    check(message(payload=kind(b"x" * LIMIT)), message(payload=kind(b"")))
    error = refuse(PayloadTooLargeError, "^payload: 101 bytes", payload=kind(b"x" * (LIMIT + 1)))
    assert isinstance(error, PayloadTooLargeError)
    assert (error.size, error.limit) == (LIMIT + 1, LIMIT)


def test_a_view_counts_its_bytes_and_not_its_items() -> None:
    check(message(payload=memoryview(array.array("q", range(12)))))
    refuse(PayloadTooLargeError, "104 bytes", payload=memoryview(array.array("q", range(13))))
    check(message(payload=memoryview(bytes(4 * LIMIT))[::4]))


@pytest.mark.parametrize("payload", [None, "hunter2", 5, ["hunter2"], {"a": "hunter2"}])
def test_anything_else_is_no_payload_and_is_not_shown(payload: object) -> None:
    error = refuse(InvalidMessageError, "^payload .*: must be bytes$", payload=payload)
    assert "hunter2" not in str(error)


# -- schedule ----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["deliver_at", "published_at"])
def test_an_instant_is_an_aware_datetime(field: str) -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 - on purpose
    refuse(InvalidMessageError, f"^{field} .*has no time zone$", **{field: naive})
    for value in (date(2026, 1, 1), "2026-01-01T00:00:00Z", 1_767_225_600, 0, timedelta(1)):
        refuse(InvalidMessageError, f"^{field} .*must be a datetime$", **{field: value})


@pytest.mark.parametrize("zone", [UTC, WEST, EAST, timezone(timedelta(hours=5, minutes=45))])
def test_the_horizon_is_an_instant_in_whatever_zone(zone: timezone) -> None:
    before = datetime.now(UTC)
    check(message(deliver_at=(before + RETENTION).astimezone(zone)))  # at the horizon, or before it
    check(message(deliver_at=(before - 100 * RETENTION).astimezone(zone)))
    far = (before + RETENTION + timedelta(minutes=1)).astimezone(zone)
    error = refuse(ScheduleTooFarError, "^deliver_at .*: later than", deliver_at=far)
    assert isinstance(error, ScheduleTooFarError)
    assert error.deliver_at is far
    assert before + RETENTION <= error.horizon <= datetime.now(UTC) + RETENTION


def test_the_horizon_itself_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime(2026, 1, 1, tzinfo=tz)

    monkeypatch.setattr("queue_lib.engine.publish.datetime", Stopped)
    horizon = Stopped(2026, 1, 8, tzinfo=UTC)
    check(message(deliver_at=horizon))
    with pytest.raises(ScheduleTooFarError):
        check(message(deliver_at=horizon + timedelta(microseconds=1)))


@pytest.mark.parametrize("zone", [UTC, WEST, EAST])
def test_the_ends_of_the_calendar_are_no_surprise(zone: timezone) -> None:
    latest, earliest = datetime.max.replace(tzinfo=zone), datetime.min.replace(tzinfo=zone)
    refuse(ScheduleTooFarError, "^deliver_at 9999-12-31 ", deliver_at=latest)
    for field, instant in (("deliver_at", earliest), ("published_at", latest)):
        check_or_refuse(field, instant)
    check_or_refuse("published_at", earliest)


def check_or_refuse(field: str, instant: datetime) -> None:
    """What cannot be said in UTC could be stored, but every later claim would trip over it."""
    try:
        instant.astimezone(UTC)
    except OverflowError:
        refuse(InvalidMessageError, f"^{field} .*years 1 to 9999 of UTC$", **{field: instant})
    else:
        check(message(**{field: instant}))


# -- priority ----------------------------------------------------------------------------------


def test_a_priority_is_a_whole_number_of_32_bits() -> None:
    for priority in (0, -(2**31), 2**31 - 1, Urgency.HIGH):
        check(message(priority=priority))
    for priority in (2**31, -(2**31) - 1, 10**5000):
        refuse(InvalidMessageError, "^priority .*must be a number of 32 bits$", priority=priority)
    for wrong in (True, False, None, 1.0, "1", float("nan"), [1]):
        refuse(InvalidMessageError, "^priority .*must be a whole number$", priority=wrong)


# -- filling in --------------------------------------------------------------------------------


def test_only_what_is_empty_is_filled_in() -> None:
    then = datetime(2020, 1, 1, tzinfo=EAST)
    empty, given_ = message(), message(id="mine", published_at=then)
    before = datetime.now(UTC)
    fill_in([empty, given_, empty])
    assert UUID(empty.id).version == 7
    assert str(UUID(empty.id)) == empty.id
    assert empty.published_at is not None
    assert before <= empty.published_at <= datetime.now(UTC)
    assert empty.published_at.tzinfo is UTC
    assert (given_.id, given_.published_at) == ("mine", then)
    filled = (empty.id, empty.published_at)
    fill_in([empty])
    assert (empty.id, empty.published_at) == filled
