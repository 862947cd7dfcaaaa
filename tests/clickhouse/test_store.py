"""What only this store has: drivers that share, publishing without a locker, the ways in."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

if not os.environ.get("CI"):
    pytest.importorskip("clickhouse_sqlalchemy", reason="the extra clickhouse is not installed")

from queue_lib import Config, Dependencies, Message, migrate, new_queue, open_queue
from queue_lib.errors import LockerRequiredError, UnsupportedError
from queue_lib.locks import ProcessLocker
from queue_lib.options import StartFrom
from queue_lib.stores.base import ClaimRequest, ConsumeChecker, ForkAware, Stats, TransactionalStore
from queue_lib.stores.clickhouse.codec import decode_payload, encode_payload
from queue_lib.stores.clickhouse.open import open_clickhouse_store
from tests.clickhouse.child import GROUP, TOPIC, claim, message

PAYLOADS = [
    b"", b"\0", bytes(range(256)), b"\r\n\t\\N'\"%(x)s", b"\\", "\N{COLLISION SYMBOL}".encode(),
    b"\xed\xa0\x80", b"trailing  ", b"u", b"b", b"bQUJD", b"x" * 2_000_000, b"\xff\n" * 200_000,
]  # fmt: skip


def test_payloads_are_exact_between_the_drivers(
    url, open_store, clickhouse_server, clickhouse_database
):
    locker = ProcessLocker()
    native = open_store(url, locker=locker)
    http = open_store(clickhouse_server.url(clickhouse_database, "http"), locker=locker)
    for group in ("a", "b"):
        native.ensure_group(TOPIC, group, StartFrom.LATEST)
    for number, store in enumerate((native, http)):
        store.append(
            [
                Message(TOPIC, payload, id=f"{number}-{n}", published_at=message("x").published_at)
                for n, payload in enumerate(PAYLOADS)
            ]
        )
    for group, store in (("a", native), ("b", http)):
        found: list[bytes] = []
        while got := store.claim(ClaimRequest(TOPIC, group, "", 100, timedelta(seconds=60))):
            found += [one.message.payload for one in got]
        assert found == PAYLOADS * 2


@pytest.mark.parametrize("payload", PAYLOADS[:-2])
def test_payloads_become_text_and_come_back(payload):
    assert decode_payload(encode_payload(payload)) == payload


def test_without_a_locker_it_publishes_and_cannot_consume(url, open_store):
    store = open_clickhouse_store(sa.make_url(url))
    try:
        store.append([message("a")])
        store.append([message("a"), message("b")])
        for consume in (
            store.can_consume,
            lambda: store.ensure_group(TOPIC, GROUP, StartFrom.EARLIEST),
            lambda: claim(store),
        ):
            with pytest.raises(LockerRequiredError, match="locker"):
                consume()
    finally:
        store.close()
    shared = open_store(url)
    shared.ensure_group(TOPIC, GROUP, StartFrom.EARLIEST)
    assert [found.message.id for found in claim(shared)] == ["a", "b"]


def test_publishers_without_a_locker_get_along(url, open_store):
    """Each finds itself refused when the other was there, and comes in again above it."""
    stores = [open_clickhouse_store(sa.make_url(url)) for _ in range(3)]
    shared = open_store(url)
    shared.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    shared.append([message("shared")])
    try:
        for round_ in range(4):
            for number, store in enumerate(stores):
                store.append([message(f"{round_}-{number}")])
            shared.append([message(f"{round_}-shared")])
            assert [found.message.id for found in claim(shared)] == [
                *(["shared"] if round_ == 0 else []),
                *(f"{round_}-{number}" for number in range(3)),
                f"{round_}-shared",
            ]
    finally:
        for store in stores:
            store.close()


def test_what_it_implements(store):
    assert isinstance(store, ConsumeChecker)
    assert isinstance(store, ForkAware)
    assert not isinstance(store, TransactionalStore)


def test_open_queue_migrates_publishes_and_consumes(clickhouse_url):
    got: list[bytes] = []
    done = threading.Event()

    def handle(delivery: Any) -> None:
        got.append(delivery.payload)
        if len(got) == 3:
            done.set()

    with open_queue(clickhouse_url, locker=ProcessLocker(), migrate=True) as queue:
        queue.subscribe(TOPIC, GROUP, handle)
        queue.publish(*(Message(TOPIC, str(number).encode()) for number in range(3)))
        assert done.wait(20)
        with pytest.raises(UnsupportedError):
            queue.publish(Message(TOPIC), connection=object())
    with open_queue(clickhouse_url) as publisher:
        publisher.publish(Message(TOPIC, b"more"))
        with pytest.raises(LockerRequiredError):
            publisher.subscribe(TOPIC, "late", handle, start_from="earliest")
        assert publisher.stats(TOPIC, "late") == Stats()
    assert sorted(got) == [b"0", b"1", b"2"]


def test_new_queue_takes_the_engine_and_the_locker(url):
    engine = sa.create_engine(url)
    config = Config.from_mapping({"enabled": True, "type": "logstore", "config": {}})
    with_locker = Dependencies(engine=engine, locker=ProcessLocker())
    for dependencies, can_consume in ((with_locker, True), (Dependencies(engine=engine), False)):
        queue = new_queue(config, dependencies)
        assert queue is not None
        with queue:
            queue.ping()
            queue.publish(Message(TOPIC))
            if can_consume:
                assert queue.subscribe(TOPIC, GROUP, print).close(5)
            else:
                with pytest.raises(LockerRequiredError):
                    queue.subscribe(TOPIC, GROUP, print)


def test_a_priority_far_behind_in_the_log_comes_first(store):
    store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    store.append([message(f"m{number:05}") for number in range(3000)])
    assert [found.message.id for found in claim(store, 1)] == ["m00000"]
    store.append([message("urgent", priority=-1)])
    assert [found.message.id for found in claim(store, 2)] == ["urgent", "m00001"]


def test_large_payloads_are_not_read_far_ahead(store):
    store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
    rows = [message(f"m{number:02}") for number in range(60)]
    for row in rows:
        row.payload = b"x" * 1_000_000
    store.append(rows)
    seen: list[str] = []
    while got := claim(store, 5):
        seen += [found.message.id for found in got]
        ((_, seat),) = [pair for pair in store._turns._seats.items() if pair[0].startswith("g:")]
        assert len(seat.memory.log.rows) < 20
    assert seen == [row.id for row in rows]


def test_a_database_whose_name_needs_quotes(clickhouse_server, open_store):
    name = "it's `my`-db"
    clickhouse_server.execute("CREATE DATABASE `it's \\`my\\`-db` ENGINE = Atomic")
    url = sa.make_url(clickhouse_server.url()).set(database=name)
    try:
        migrate.upgrade(url)
        store = open_store(url)
        store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
        store.append([message("a")])
        (found,) = claim(store)
        assert store.ack([found]) == [found.delivery_id]
    finally:
        clickhouse_server.execute("DROP DATABASE `it's \\`my\\`-db` SYNC")
