"""A process forks while its threads are at work: parent and child go on, each for itself."""

from __future__ import annotations

import json
import os
import signal
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if not os.environ.get("CI"):
    pytest.importorskip("clickhouse_sqlalchemy", reason="the extra clickhouse is not installed")

from queue_lib import migrate
from queue_lib.forks import follow_forks, leave_forks
from queue_lib.lockers.keeper_map import KeeperMapLocker
from queue_lib.lockers.sql import SQLLocker
from queue_lib.options import StartFrom
from queue_lib.stores.base import Stats
from tests.clickhouse.child import GROUP, TOPIC, claim, message
from tests.clickhouse_server import ClickHouseServer

if TYPE_CHECKING:
    from queue_lib.stores.clickhouse.store import ClickHouseStore

CHILDREN = 3
SECONDS = 30


def fork(work: Callable[[], Any]) -> Callable[[], Any]:
    """Do `work` in a forked child; return what waits for what it returned."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(SECONDS)  # a lock that nobody will release any more
        try:
            os.write(writes, json.dumps(work()).encode())
        except BaseException:  # noqa: BLE001 - whatever it is must not run on as the parent
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writes)

    def hear() -> Any:
        with os.fdopen(reads) as pipe:
            text = pipe.read()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert text, "the child failed: see its output"
        return json.loads(text)

    return hear


def work_on(store: ClickHouseStore, name: str) -> list[str]:
    """Publish, claim and acknowledge; return what was acknowledged."""
    store.append([message(f"{name} {number}") for number in range(2)])
    found = claim(store, 2)
    assert [one.attempt for one in found] == [1, 1]
    assert len(store.ack(found)) == 2
    return [one.message.id for one in found]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("driver", "locker"), [("native", "sql"), ("http", "sql"), ("native", "keeper")]
)
def test_parent_and_children_publish_and_claim(
    clickhouse_server: ClickHouseServer,
    clickhouse_database: str,
    open_store: Callable[..., ClickHouseStore],
    locks: Path,
    driver: str,
    locker: str,
):
    url = clickhouse_server.url(clickhouse_database, driver)
    migrate.upgrade(url)
    stop, noise = threading.Event(), list[str]()
    with SQLLocker(f"sqlite:///{locks}") if locker == "sql" else KeeperMapLocker(url) as given:
        store = open_store(url, locker=given)
        follow_forks(store)  # as its queue does
        store.ensure_group(TOPIC, GROUP, StartFrom.LATEST)
        store.append([message("early")])
        (early,) = claim(store)

        def make_noise() -> None:
            while not stop.is_set():
                store.append([message(f"noise {len(noise)}")])
                noise.append(f"noise {len(noise)}")

        thread = threading.Thread(target=make_noise)
        thread.start()
        try:
            done = []
            for number in range(CHILDREN):
                hear = fork(partial(work_on, store, f"child {number}"))
                done += work_on(store, f"parent {number}")
                done += hear()
        finally:
            stop.set()
            thread.join()
        while found := claim(store):
            assert len(store.ack(found)) == len(found)
            done += [one.message.id for one in found]
        assert store.ack([early]) == [early.delivery_id]
        assert store.stats(TOPIC, GROUP) == Stats()
        leave_forks(store)
    names = [f"{who} {n} {m}" for who in ("child", "parent") for n in range(CHILDREN) for m in "01"]
    assert sorted(done) == sorted(names + noise)
