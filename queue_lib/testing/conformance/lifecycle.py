"""A store as an object: what it implements, whether it is reachable, and its end."""

from __future__ import annotations

import pytest

from queue_lib.options import StartFrom
from queue_lib.stores.base import (
    AckingClaimer,
    DetailedStats,
    ForkAware,
    Stats,
    Store,
    TransactionalStore,
    WakeSource,
)
from queue_lib.testing.conformance.case import StoreCase, together

__all__ = ["LifecycleConformance"]


class LifecycleConformance(StoreCase):
    """Opening, probing, forking, closing."""

    def test_it_implements_what_it_says(self) -> None:
        assert isinstance(self.store, Store)
        for capability, protocol in {
            "ack_and_claim": AckingClaimer,
            "detailed_stats": DetailedStats,
            "transactional": TransactionalStore,
            "wake": WakeSource,
        }.items():
            if capability in self.capabilities:
                assert isinstance(self.store, protocol), capability

    def test_its_capabilities_are_known(self) -> None:
        assert self.capabilities <= {
            "ack_and_claim", "clock", "detailed_stats", "peek", "shared", "transactional", "wake",
        }  # fmt: skip

    def test_it_is_reachable(self) -> None:
        self.store.ping()

    def test_it_closes_twice(self) -> None:
        self.register()
        self.store.close()
        self.store.close()

    def test_it_is_usable_after_a_fork_in_the_parent(self) -> None:
        if not isinstance(self.store, ForkAware):
            pytest.skip("this store does not mind a fork")
        self.register()
        self.publish("a")
        for _ in range(2):
            self.store.before_fork()
            self.store.after_fork(child=False)
        assert self.drain() == ["a"]

    def test_every_thread_may_use_it(self) -> None:
        self.register()
        together(4, lambda number: self.publish(f"m{number}"))
        assert self.stats() == Stats(pending=4)
        together(4, lambda _: self.ack(*self.claim(1)))
        assert self.stats() == Stats()

    @pytest.mark.requires("shared")
    def test_its_contents_outlive_a_handle(self) -> None:
        self.register()
        self.publish("a")
        second = self.second_handle()
        self.store.close()
        second.ensure_group("orders", "audit", StartFrom.EARLIEST)
        for group in ("billing", "audit"):
            claims = self.claim(group=group, store=second)
            assert [claim.message.id for claim in claims] == ["a"]

    @pytest.mark.requires("shared")
    def test_one_handle_sees_what_another_did(self) -> None:
        second = self.second_handle()
        self.register()
        second.append([self.message("a"), self.message("b")])
        a, b = self.claim()
        assert second.ack([a]) == [a.delivery_id]
        assert self.store.ack([a, b]) == [b.delivery_id]
        assert second.stats("orders", "billing") == Stats()
