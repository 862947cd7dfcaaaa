"""The memory store: everything that every store passes, and what only this one promises."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest

from queue_lib.errors import QueueClosedError
from queue_lib.stores.base import Stats
from queue_lib.stores.memory import MemoryStore
from queue_lib.testing.clock import ManualClock
from queue_lib.testing.conformance import OwnClockConformance, StoreCase, StoreConformance
from queue_lib.testing.conformance.case import GROUP, TICK, TOPIC, ids, together


class TestMemoryStore(StoreConformance):
    capabilities: ClassVar[frozenset[str]] = frozenset({"clock", "detailed_stats"})

    def make_store(self, clock: ManualClock, tmp_path: Path) -> MemoryStore:
        return MemoryStore(clock)


class TestMemoryStoreOnItsOwnClock(OwnClockConformance):
    def make_store(self, clock: ManualClock, tmp_path: Path) -> MemoryStore:
        return MemoryStore()


class TestOnlyMemoryStore(StoreCase):
    store: MemoryStore

    def make_store(self, clock: ManualClock, tmp_path: Path) -> MemoryStore:
        return MemoryStore(clock)

    def test_a_closed_store_refuses_everything(self) -> None:
        self.register()
        self.publish("a")
        claim = self.claim_one()
        self.store.close()
        for call in (
            self.register,
            lambda: self.publish("b"),
            self.claim,
            lambda: self.ack(claim),
            lambda: self.kill(claim),
            lambda: self.retry(claim),
            lambda: self.extend(claim),
            lambda: self.store.release([claim]),
            self.purge,
            self.stats,
            lambda: self.store.group_stats(TOPIC, GROUP),
            self.store.ping,
        ):
            with pytest.raises(QueueClosedError):
                call()

    def test_a_bad_message_refuses_the_whole_call(self) -> None:
        self.register()
        naive = self.message("b", due_in=0)
        assert naive.deliver_at is not None
        naive.deliver_at = naive.deliver_at.replace(tzinfo=None)
        with pytest.raises(TypeError):
            self.store.append([self.message("a"), naive])
        assert self.stats() == Stats()

    def test_a_claim_of_another_store_holds_nothing(self) -> None:
        self.register()
        self.publish("a")
        claim = self.claim_one()
        claim.ref = (1, 1, None)  # what an SQL store's claims carry
        assert self.store.ack([claim]) == []
        assert self.stats() == Stats(leased=1)

    def test_heartbeats_pile_nothing_up(self) -> None:
        self.register()
        self.publish("a", "b", "c")
        claims = self.claim(lease=30)
        for _ in range(1000):
            self.pass_time(1)
            assert self.extend(*claims, lease=3600) == {"a", "b", "c"}
        group = self.store._topics[TOPIC].groups[GROUP]
        assert len(group.leases) < 200

    def test_a_stepped_wall_clock_moves_no_lease(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = MemoryStore()
        self.register()
        self.publish("a")
        claim = self.claim_one(lease=3600)
        monkeypatch.setattr(time, "time_ns", lambda: 4_000_000_000_000_000_000)
        monkeypatch.setattr(time, "time", lambda: 4_000_000_000.0)
        assert self.claim() == []
        assert self.extend(claim, lease=3600) == {"a"}

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # threads: that is the point
    def test_a_forked_child_has_a_copy_of_its_own(self) -> None:
        self.register()
        self.publish("a", "b")
        held = self.claim(1)
        stop = threading.Event()
        busy = threading.Thread(target=self._keep_the_lock_busy, args=(stop,))
        busy.start()
        try:
            children = [self._fork() for _ in range(5)]
        finally:
            stop.set()
            busy.join()
        for child in children:
            assert os.waitpid(child, 0)[1] == 0
        self.ack(*held)
        assert ids(self.claim()) == ["b"]

    def _keep_the_lock_busy(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.stats()

    def _fork(self) -> int:
        self.store.before_fork()
        child = os.fork()
        self.store.after_fork(child=child == 0)
        if child:
            return child
        try:
            works = ids(self.claim()) == ["b"] and self.stats() == Stats(leased=2)
        finally:
            os._exit(0 if works else 1)

    def test_a_backlog_slows_nothing_down(self) -> None:
        self.register()
        small = self._timed()
        self.publish(*(f"k{number}" for number in range(10_000)), key="blocked")
        self.claim_one(lease=1e6)
        self.publish(*(f"s{number}" for number in range(10_000)), due_in=1e6)
        self.publish(*(f"p{number}" for number in range(10_000)), priority=9)
        assert self._timed() < small * 20 + 0.05

    def _timed(self) -> float:
        """Return the best time of three, of a hundred messages one by one."""
        times = []
        for _ in range(3):
            began = time.perf_counter()
            for _ in range(100):
                self.publish(f"at {self.clock()}")
                self.ack(*self.claim(1))
                self.pass_time(TICK)
            times.append(time.perf_counter() - began)
        return min(times)

    def test_claimers_and_publishers_together_lose_nothing(self) -> None:
        self.register()

        def work(number: int) -> list[str]:
            seen = []
            for turn in range(100):
                self.publish(f"m{number}-{turn}", key=f"k{turn % 7}" if number % 2 else "")
                claims = self.claim(2)
                self.ack(*claims)
                seen += ids(claims)
            return seen

        seen = [name for names in together(6, work) for name in names]
        seen += self.drain()
        assert sorted(seen) == sorted(f"m{n}-{turn}" for n in range(6) for turn in range(100))
