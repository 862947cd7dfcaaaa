"""Everything at once for twenty seconds; then each delivery was settled exactly once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from datetime import timedelta

import pytest

from queue_lib.message import Message
from queue_lib.stores.base import Claimed, PurgePolicy
from queue_lib.stores.sql.store import SqlStore
from tests.postgres.lab import LEASE, Lab, message

SECONDS = 20.0
DRAIN_SECONDS = 60.0
SHORT = timedelta(milliseconds=300)
KEYS = ["", *(f"hot{n}" for n in range(5)), *(f"warm{n}" for n in range(40))]
POLICY = PurgePolicy(dead_retention=timedelta(0), acked_retention=timedelta(days=1))


class Stress:
    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.until = time.monotonic() + SECONDS
        self.pause = threading.Event()
        self.drained = threading.Event()
        self.groups = ["first"]
        self.published: dict[str, str] = {}  # id -> key, of committed publishes
        self.settled: dict[str, list[str]] = defaultdict(list)  # group -> ids
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()

    def publish(self, number: int) -> None:
        rnd, store, serial = random.Random(number), self.lab.store(), 0
        while time.monotonic() < self.until:
            batch = []
            for _ in range(rnd.choice([1, 1, 1, 3, 20])):
                serial += 1
                batch.append(message(f"{number}-{serial}", rnd.choice(KEYS)))
            if rnd.random() < 0.15:
                batch = batch[::-1] + self._some_known(rnd)
            if rnd.random() < 0.5:
                store.append(batch)
            elif not self._publish_in_a_transaction(rnd, store, batch):
                continue
            with self.lock:
                for each in batch:
                    self.published.setdefault(each.id, each.key)
            self.pause.wait(rnd.random() * 0.08)

    def _some_known(self, rnd: random.Random) -> list[Message]:
        with self.lock:
            known = list(self.published.items())[:50]
        return [message(*rnd.choice(known))] if known else []

    def _publish_in_a_transaction(
        self, rnd: random.Random, store: SqlStore, batch: list[Message]
    ) -> bool:
        with self.lab.host.connect() as connection:
            store.append_in(connection, batch)
            self.pause.wait(rnd.random() * 0.03)
            if rnd.random() < 0.2:
                self.counts["rolled back"] += 1
                return False
            connection.commit()
        return True

    def consume(self, number: int) -> None:
        rnd, store = random.Random(100 + number), self.lab.store()
        while not self.drained.is_set():
            group = rnd.choice(self.groups)
            cap = rnd.choice([0, 0, 200])
            claims = self.lab.claim(store, rnd.choice([1, 8, 32]), group=group, cap=cap,
                                    lease=SHORT)  # fmt: skip
            done: list[Claimed] = []
            for claim in claims:
                if claim.message.key and rnd.random() < 0.3:
                    self._check_lane(claim)
                match rnd.choices(["ack", "kill", "retry", "release", "abandon"], [88, 4, 4, 3, 1]):
                    case ["ack"]:
                        done.append(claim)
                    case ["kill"]:
                        if store.kill(claim, "no use"):
                            self._note(group, [claim])
                    case ["retry"]:
                        store.retry(claim, timedelta(milliseconds=rnd.choice([0, 5])), "again")
                    case ["release"]:
                        store.release([claim])
                    case _:
                        self.counts["abandoned"] += 1
            if done and rnd.random() < 0.5:
                kept = set(store.extend(done[::-1], LEASE))
                done = [claim for claim in done if claim.delivery_id in kept]
            held = set(store.ack(done))
            self._note(group, [claim for claim in done if claim.delivery_id in held])
            if not claims:
                self.pause.wait(0.005)

    def _check_lane(self, claim: Claimed) -> None:
        """Look for an older delivery of the claimed one's key: there may be dead ones only."""
        group_id, seq, key = claim.ref
        older = self.lab.tables.qualify(
            "SELECT count(*) FROM {q}deliveries "
            "WHERE group_id = %s AND key = %s AND seq < %s AND state <> 4"
        )
        with self.lab.host.connect() as connection:
            found = connection.exec_driver_sql(older, (group_id, key, seq)).scalar_one()
        self.counts["checked"] += 1
        self.counts["out of order"] += found

    def _note(self, group: str, claims: list[Claimed]) -> None:
        with self.lock:
            self.settled[group] += [claim.message.id for claim in claims]

    def upkeep(self) -> None:
        store = self.lab.store()
        for number in range(4):
            self.lab.register(store, f"late{number}", earliest=True)
            self.groups.append(f"late{number}")
            for _ in range(10):
                store.purge(POLICY, 50)
                self.pause.wait(SECONDS / 60)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + DRAIN_SECONDS + 60)
def test_everything_at_once(lab: Lab) -> None:
    lab.consuming("first")
    stress = Stress(lab)
    publishers = [lab.start(stress.publish, number) for number in range(4)]
    consumers = [lab.start(stress.consume, number) for number in range(4)]
    upkeep = lab.start(stress.upkeep)
    try:
        for each in (*publishers, upkeep):
            each.result(SECONDS + 30)
        left = "SELECT count(*) FROM {q}deliveries WHERE state <> 4"
        end = time.monotonic() + DRAIN_SECONDS
        while lab.ask(left) and time.monotonic() < end:
            stress.pause.wait(0.1)
    finally:
        stress.drained.set()
    for consumer in consumers:
        consumer.result(30)

    assert lab.ask(left) == 0
    assert stress.counts["out of order"] == 0
    assert stress.counts["checked"] > 100
    assert {id for (id,) in lab.rows("SELECT id FROM {q}messages")} == set(stress.published)
    for group in stress.groups:
        assert sorted(stress.settled[group]) == sorted(stress.published), group
