"""What goes in comes out: every byte, every character, every microsecond, up to every limit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from queue_lib.message import Message
from queue_lib.names import MAX_ID_LENGTH, MAX_NAME_LENGTH, delivery_id
from queue_lib.options import StartFrom
from queue_lib.stores.base import Stats
from queue_lib.testing.conformance.case import StoreCase, ids

__all__ = ["BytesConformance"]

TEXTS = {
    "quotes": 'it\'s "quoted" `so` \\ and % _ ?; -- $1 :x {y}',
    "control": "a\tb\nc\rd\x01\x1b\x7f",
    "emoji": "\N{COLLISION SYMBOL}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{PERSONAL COMPUTER}",
    "non-ASCII": "Größe 数量 количество عدد",
    "NFC": "caf\u00e9",
    "NFD": "cafe\u0301",
    "space": " ",
    "looks like JSON": '{"a": null}',
    "looks like a number": "0012",
    "looks like null": "null",
}

LOOKALIKES = [
    "key", "Key", "KEY", "key ", "key  ", " key", "key\t", "key\n", "caf\u00e9", "cafe\u0301",
    "CAF\u00c9", "stra\u00dfe", "strasse", "k\u0435y", "1", "1.0", "01", "a", "\u00e4", "\uff41",
]  # fmt: skip
"""Equal under some collation, case folding, padding or conversion; different all the same."""

texts = pytest.mark.parametrize("text", list(TEXTS.values()), ids=list(TEXTS))


class BytesConformance(StoreCase):
    """Fidelity of messages."""

    def _round_trip(self, message: Message) -> Message:
        self.register(topic=message.topic)
        self.store.append([message])
        claim = self.claim_one(topic=message.topic)
        assert claim.delivery_id == delivery_id(message.id, claim.group)
        self.ack(claim)
        return claim.message

    @pytest.mark.parametrize(
        "payload",
        [b"", bytes(range(256)), bytes(range(255, -1, -1)) * 3, b"\0", b"\0\0a\0", b"'\"\\",
         "\N{COLLISION SYMBOL}".encode(), b"\xff\xfe\xed\xa0\x80", b"\\x6869", b"x" * (1 << 20)],
        ids=["empty", "all", "all reversed", "NUL", "NULs", "quotes", "emoji", "not UTF-8",
             "looks like hex", "1 MiB"],
    )  # fmt: skip
    def test_payloads(self, payload: bytes) -> None:
        got = self._round_trip(self.message("a", payload=payload)).payload
        assert got == payload
        assert type(got) is bytes

    @texts
    def test_header_names_and_values(self, text: str) -> None:
        headers = {text: "value", "name": text, "both": text + text}
        assert self._round_trip(self.message("a", headers=headers)).headers == headers

    def test_a_header_value_with_nul(self) -> None:
        headers = {"a": "x\0y", "\0": "\0", "empty": ""}
        assert self._round_trip(self.message("a", headers=headers)).headers == headers

    def test_header_order_and_number(self) -> None:
        headers = {f"h{number:03}": str(number) for number in range(300, 0, -1)}
        got = self._round_trip(self.message("a", headers=headers)).headers
        assert got is not None
        assert list(got.items()) == list(headers.items())

    @pytest.mark.parametrize("headers", [None, {}])
    def test_no_headers(self, headers: dict[str, str] | None) -> None:
        assert not self._round_trip(self.message("a", headers=headers)).headers

    @texts
    def test_keys(self, text: str) -> None:
        self.register()
        self.publish("k1", "k2", key=text)
        claim = self.claim_one()
        assert claim.message.key == text
        self.ack(claim)
        assert self.drain() == ["k2"]

    @texts
    def test_ids(self, text: str) -> None:
        assert self._round_trip(self.message(text)).id == text
        self.publish(text)
        assert self.stats() == Stats()

    def test_keys_that_look_alike_are_lanes_of_their_own(self) -> None:
        self.register()
        for number, key in enumerate(LOOKALIKES):
            self.publish(f"{number}", f"{number} again", key=key)
        claims = self.claim(100)
        assert [claim.message.key for claim in claims] == LOOKALIKES
        self.ack(*claims)
        assert [claim.message.key for claim in self.claim(100)] == LOOKALIKES

    def test_ids_that_look_alike_are_messages_of_their_own(self) -> None:
        self.register()
        self.publish(*LOOKALIKES)
        self.publish(*LOOKALIKES)
        assert self.drain() == LOOKALIKES

    def test_names_that_look_alike_are_topics_and_groups_of_their_own(self) -> None:
        names = ["orders", "Orders", "ORDERS", "orders.", "orders-", "orders_", "o_ders", "_"]
        for name in names:
            self.register(name, topic=name)
            self.publish(f"to {name}", topic=name)
        for name in names:
            assert self.drain(name, topic=name) == [f"to {name}"]

    def test_names_ids_and_keys_at_their_limits(self) -> None:
        topic = "t" * MAX_NAME_LENGTH
        group = "g" * MAX_NAME_LENGTH
        longest = ["i" * MAX_ID_LENGTH, "\N{COLLISION SYMBOL}" * (MAX_ID_LENGTH // 4) + "abc"]
        assert {len(text.encode()) for text in longest} == {MAX_ID_LENGTH}
        self.publish("early", topic=topic)
        self.register(group, topic=topic, start_from=StartFrom.EARLIEST)
        for text in longest:
            self.publish(text, topic=topic, key=text)
            self.publish(text[::-1], topic=topic, key=text)
        # Equal but for the last character: nothing is cut.
        self.publish(longest[0][:-1] + "j", topic=topic, key=longest[0][:-1] + "j")
        claims = self.claim(topic=topic, group=group)
        assert ids(claims) == ["early", *longest, longest[0][:-1] + "j"]
        assert [claim.message.key for claim in claims] == ["", *longest, longest[0][:-1] + "j"]
        self.retry(claims[0])
        self.ack(*claims[1:])
        assert self.stats(group, topic=topic).pending == 2

    def test_published_at(self) -> None:
        instant = datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC)
        message = self.message("a")
        message.published_at = instant
        assert self._round_trip(message).published_at == instant

    def test_instants_of_any_zone_come_back_in_utc(self) -> None:
        zone = timezone(timedelta(hours=5, minutes=30))
        message = self.message("a")
        message.published_at = datetime(1999, 12, 31, 23, 0, 0, 1, tzinfo=zone)
        message.deliver_at = datetime(2000, 1, 1, 3, 0, 0, 1, tzinfo=zone)
        got = self._round_trip(message)
        assert got.published_at == message.published_at
        assert got.deliver_at == message.deliver_at
        for instant in (got.published_at, got.deliver_at):
            assert instant is not None
            assert instant.utcoffset() == timedelta(0)

    def test_deliver_at_of_the_past(self) -> None:
        message = self.message("a")
        message.deliver_at = datetime(2001, 9, 9, 1, 46, 40, 123_456, tzinfo=UTC)
        assert self._round_trip(message).deliver_at == message.deliver_at
