"""J. Process life cycle: fork, threads, signals, shutdown, deploy."""

from __future__ import annotations

import logging
import time

import pytest
import sqlalchemy as sa

from queue_lib import Delivery, Permanent, StartFrom, Stats
from queue_lib.engine.queue import StoreQueue
from queue_lib.stores.schema import build_tables
from queue_lib.testing.conformance.case import together
from tests.clickhouse_server import ClickHouseServer
from tests.engine.conftest import OpenQueue
from tests.engine.harness import (
    DEADLINE,
    FAST,
    GROUP,
    MINUTE,
    TOPIC,
    Backend,
    Diary,
    Gate,
    Inbox,
    eventually,
    messages,
)
from tests.pain import child
from tests.pain.test_i_retention import BUSY_JANITOR, purged

SECONDS_TO_END = 10.0
"""How long a process takes to start and end at most, on a busy machine."""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.requires("shared")
def test_a_handler_that_never_returns_keeps_no_process_from_ending(
    backend: Backend, queue: StoreQueue
) -> None:
    """P79. The close gives up in its time, the delivery is free, and the program ends."""
    queue.subscribe(TOPIC, GROUP, Inbox()).close()
    began = time.monotonic()
    with child.start("leave_a_stuck_handler", backend) as stuck:
        output, errors = stuck.communicate(timeout=DEADLINE)
    assert (stuck.returncode, output) == (0, "False\n"), errors
    assert "Traceback" not in errors
    assert time.monotonic() - began < SECONDS_TO_END
    inbox = Inbox()
    queue.subscribe(TOPIC, GROUP, inbox, **MINUTE)
    inbox.wait()
    assert inbox.attempts == [1]


def test_a_close_names_the_deliveries_that_it_leaves_to_others(
    queue: StoreQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """P79. Whoever looks into a deploy afterwards wants to know what was interrupted."""
    with caplog.at_level(logging.INFO, "queue_lib"), Gate() as gate:
        subscription = queue.subscribe(TOPIC, GROUP, gate, **MINUTE)
        queue.publish(*messages(1))
        (delivery,) = gate.wait()
        assert subscription.close(timeout=0.05) is False
        assert delivery.delivery_id in caplog.text


def test_several_janitors_take_each_row_once_and_do_not_disturb_each_other(
    backend: Backend, open_queue: OpenQueue
) -> None:
    """P78. As many as there are processes, on one table."""
    diaries = [Diary(backend.open()) for _ in range(4)]
    queues = [open_queue(diary, BUSY_JANITOR) for diary in diaries]
    together(4, lambda n: queues[n].publish(*messages(100, f"unheard-{n}")))
    eventually(lambda: purged(*diaries) == 400)
    for diary in diaries:
        diary.wait("purge", len(diary.of("purge")) + 2)
    assert purged(*diaries) == 400
    assert [queue.health().errors for queue in queues] == [()] * 4


# -- old and new releases side by side -----------------------------------------------------------


def add_columns(request: pytest.FixtureRequest, backend: Backend) -> None:
    """Do to the tables what the first half of a later release's migration does."""
    if backend.name == "clickhouse":
        server: ClickHouseServer = request.getfixturevalue("clickhouse_server")
        database = sa.make_url(backend.url).database
        for table in ("messages", "live"):
            server.execute(f"ALTER TABLE {database}.queue_{table} ADD COLUMN later String")
        return
    engine = sa.create_engine(backend.url)
    with engine.begin() as connection:
        for name in build_tables().metadata.tables:
            connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN later TEXT")
    engine.dispose()


@pytest.mark.requires("shared")
def test_a_column_that_a_later_release_added_is_nothing_to_this_one(
    request: pytest.FixtureRequest, backend: Backend, open_queue: OpenQueue
) -> None:
    """P85. Messages in flight included: no row is left behind on either side."""

    def handle(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise ValueError
        if delivery.key == "doomed":
            raise Permanent

    before, after, dead = open_queue(), open_queue(), Inbox()
    before.subscribe("dead", GROUP, dead, **FAST)
    with Gate(then=handle) as gate:
        before.subscribe(TOPIC, GROUP, gate, **FAST, dead_letter_topic="dead")
        before.publish(*messages(4, key="k"), *messages(4, start=4))
        gate.wait(4)
        add_columns(request, backend)
        gate.open()
        after.subscribe(TOPIC, GROUP, gate, **FAST, dead_letter_topic="dead")
        after.publish(*messages(4, start=8), *messages(2, start=12, key="doomed"))
        eventually(lambda: after.stats(TOPIC, GROUP) == Stats(dead=2))
        dead.wait(2)
    late = Inbox()
    after.subscribe(TOPIC, "late", late, **FAST, start_from=StartFrom.EARLIEST)
    late.wait(14)
