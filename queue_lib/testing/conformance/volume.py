"""More rows than fit any one statement: each operation takes them all, and misses none."""

from __future__ import annotations

import pytest

from queue_lib.options import StartFrom
from queue_lib.stores.base import Stats
from queue_lib.testing.conformance.case import StoreCase, ids

__all__ = ["VolumeConformance"]

sizes = pytest.mark.parametrize("count", [1201, pytest.param(50_000, marks=pytest.mark.slow)])


class VolumeConformance(StoreCase):
    """Large calls."""

    @sizes
    def test_every_operation_takes_many(self, count: int) -> None:
        self.register()
        names = [f"m{number:05}" for number in range(count)]
        self.publish(*names, payload=b"some payload")
        self.publish(*names)  # again, and nothing is stored
        assert self.stats() == Stats(pending=count)

        claims = self.claim(count + 1, lease=3600)
        assert ids(claims) == names
        assert len(self.extend(*claims, lease=7200)) == count
        self.store.release(claims)
        assert self.stats() == Stats(pending=count)
        assert self.store.ack(claims) == []

        claims = self.claim(count + 1, lease=3600)
        assert ids(claims) == names
        assert {claim.attempt for claim in claims} == {1}
        for claim in claims[:100]:
            self.retry(claim, backoff=3600)
        for claim in claims[100:200]:
            self.kill(claim)
        self.ack(*claims[200:])
        assert self.stats() == Stats(pending=100, dead=100)

    @sizes
    def test_a_backfill_takes_many(self, count: int) -> None:
        names = [f"m{number:05}" for number in range(count)]
        self.store.append(
            [self.message(name, key=f"k{number % 300}") for number, name in enumerate(names)]
        )
        self.register(start_from=StartFrom.EARLIEST)
        assert self.stats() == Stats(pending=count)
        claims = self.claim(count)
        assert ids(claims) == names[:300]
        self.ack(*claims)
        assert ids(self.claim(count)) == names[300:600]

    @sizes
    def test_many_keys_each_bring_their_next_forward(self, count: int) -> None:
        self.register()
        half = count // 2
        self.store.append([self.message(f"a{n:05}", key=f"k{n}") for n in range(half)])
        self.store.append([self.message(f"b{n:05}", key=f"k{n}") for n in range(half)])
        claims = self.claim(count)
        assert ids(claims) == [f"a{n:05}" for n in range(half)]
        self.ack(*claims)
        assert ids(self.claim(count)) == [f"b{n:05}" for n in range(half)]

    @sizes
    def test_one_long_lane_moves_one_by_one(self, count: int) -> None:
        self.register()
        self.publish(*(f"m{number:05}" for number in range(count)), key="k")
        for number in range(20):
            claim = self.claim_one(limit=count)
            assert claim.message.id == f"m{number:05}"
            self.ack(claim)
        assert self.stats() == Stats(pending=count - 20)

    @sizes
    @pytest.mark.requires("clock")
    def test_many_leases_expire_and_many_rows_are_purged(self, count: int) -> None:
        self.register()
        self.publish(*(f"m{number:05}" for number in range(count)))
        lost = self.claim(count, lease=5)
        self.pass_time(6)
        assert self.extend(*lost) == set()
        claims: list[str] = []
        while batch := self.claim(10_000, lease=60):
            assert {claim.attempt for claim in batch} == {2}
            self.ack(*batch)
            claims += ids(batch)
        assert sorted(claims) == ids(lost)  # they ended at one moment, and may come in slices
        self.pass_time(101)
        assert self.purge(acked=100, batch=1000) == 1000
        assert self.purge(acked=100, batch=count) == count - 1000
        assert self.purge(acked=100, batch=count) == 0
