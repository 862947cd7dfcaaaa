"""H. Clocks that are wrong, and zones that are odd."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa

from queue_lib import Delivery, EngineConfig, Message, StartFrom, Stats
from tests.engine.conftest import OpenQueue
from tests.engine.harness import (
    FAST,
    GROUP,
    MINUTE,
    TOPIC,
    Backend,
    Diary,
    Inbox,
    eventually,
)

TEN_MINUTES = timedelta(minutes=10)


class _Skewed(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime)


@pytest.fixture(params=[-TEN_MINUTES, TEN_MINUTES], ids=["slow", "fast"])
def skew(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> timedelta:
    """Set the clock of this process, as the engine reads it, ten minutes wrong."""
    off: timedelta = request.param

    class Clock(datetime, metaclass=_Skewed):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + off

    for module in ("publish", "settle"):
        monkeypatch.setattr(f"queue_lib.engine.{module}.datetime", Clock)
    return off


@pytest.mark.slow
def test_a_process_whose_clock_is_wrong_gets_everything_in_its_time(
    backend: Backend, open_queue: OpenQueue, skew: timedelta
) -> None:
    """P67. Leases, backoffs, dead letters and the purge are of the database's time."""
    diary = Diary(backend.open())
    five_minutes = EngineConfig(janitor_interval=0.01, acked_retention_hours=5 / 60)
    queue = open_queue(diary, five_minutes)

    def handle(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise ValueError
        assert not delivery.cancelled.wait(2 * backend.lease)
        raise ValueError

    inbox, dead, late = Inbox(then=handle), Inbox(), Inbox()
    queue.subscribe("dead", GROUP, dead, **MINUTE)
    options = {**MINUTE, "lease_duration": backend.lease, "backoff_base": 0.2, "backoff_max": 0.2}
    queue.subscribe(TOPIC, GROUP, inbox, **options, max_attempts=2, dead_letter_topic="dead")
    message = Message(TOPIC, id="a")
    queue.publish(message, Message("unheard", id="b"))
    assert message.published_at is not None
    assert abs(message.published_at - skew - datetime.now(UTC)) < TEN_MINUTES / 2
    (copy,) = dead.wait()  # which was made just now, by that clock
    eventually(lambda: queue.stats("dead", GROUP) == Stats())
    (retry,) = diary.of("retry")
    assert inbox.attempts == [1, 2]
    assert inbox.times[1] - retry.began >= 0.1 - 0.001
    assert copy.published_at is not None
    diary.wait("purge", len(diary.of("purge")) + 2)  # what is young by the database's clock stays
    queue.subscribe("unheard", GROUP, late, **FAST, start_from=StartFrom.EARLIEST)
    late.wait()


INSTANTS = {
    "gap": datetime(2024, 3, 31, 2, 30, 0, 1, tzinfo=ZoneInfo("Europe/Berlin")),
    "fold, first": datetime(2024, 10, 27, 2, 30, 0, 1, tzinfo=ZoneInfo("Europe/Berlin")),
    "fold, second": datetime(2024, 10, 27, 2, 30, 0, 1, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    "half an hour": datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=ZoneInfo("Asia/Kolkata")),
}
"""Instants of the past, and what the local time of the process makes no difference to."""


@pytest.fixture(params=["UTC", "Asia/Kolkata", "America/St_Johns"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The zone of this process."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


def test_an_instant_is_the_same_in_every_zone_of_process_and_server(
    backend: Backend, open_queue: OpenQueue, zone: str
) -> None:
    """P68. It comes back in UTC, to the microsecond, and what is ahead is due neither sooner."""
    if backend.name == "postgres":
        set_zone_of_server(backend.url, "Australia/Eucla")  # 8:45 ahead of UTC
    queue = open_queue()
    ran: dict[str, datetime] = {}

    def handle(delivery: Delivery) -> None:
        ran[delivery.id] = datetime.now(UTC)

    inbox = Inbox(then=handle)
    queue.subscribe(TOPIC, GROUP, inbox, **MINUTE)
    soon = (datetime.now(UTC) + timedelta(seconds=0.4)).astimezone(ZoneInfo(zone))
    due = {**INSTANTS, "soon": soon}
    queue.publish(
        *(Message(TOPIC, id=id, deliver_at=at, published_at=at) for id, at in due.items())
    )
    for delivery in inbox.wait(len(due)):
        for instant in (delivery.deliver_at, delivery.published_at):
            assert instant is not None
            assert instant.tzinfo is UTC
            # Not by ==: to that, an instant in a gap or a fold of another zone equals nothing.
            assert instant.isoformat() == due[delivery.id].astimezone(UTC).isoformat()
    late = ran["soon"] - soon
    assert timedelta(0) <= late < timedelta(seconds=5)


def set_zone_of_server(url: str, zone: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        name = engine.url.database
        connection.exec_driver_sql(f"ALTER DATABASE \"{name}\" SET timezone = '{zone}'")
    engine.dispose()
