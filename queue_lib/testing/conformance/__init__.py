"""The suite that every store passes: subclass `StoreConformance` and say how to make a store.

::

    # conftest.py
    pytest_plugins = ["queue_lib.testing.plugin"]

    # test_my_store.py
    from queue_lib.testing.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        capabilities = frozenset({"clock"})

        def make_store(self, clock, tmp_path):
            return MyStore(tmp_path / "queue", clock=clock)

    class TestMyStoreOnItsOwnClock(OwnClockConformance):
        def make_store(self, clock, tmp_path):
            return MyStore(tmp_path / "queue")

What a store is not capable of is skipped, with the reason; see `StoreCase` for the names. The
classes of the modules can also be subclassed one by one.
"""

from __future__ import annotations

from queue_lib.testing.conformance.append import AppendConformance
from queue_lib.testing.conformance.bytes import BytesConformance
from queue_lib.testing.conformance.case import StoreCase
from queue_lib.testing.conformance.claim import ClaimConformance
from queue_lib.testing.conformance.fencing import FencingConformance
from queue_lib.testing.conformance.groups import GroupConformance
from queue_lib.testing.conformance.joint import JointConformance
from queue_lib.testing.conformance.lease import LeaseConformance
from queue_lib.testing.conformance.lifecycle import LifecycleConformance
from queue_lib.testing.conformance.limits import LimitConformance
from queue_lib.testing.conformance.order import OrderConformance
from queue_lib.testing.conformance.own_clock import OwnClockConformance
from queue_lib.testing.conformance.peek import PeekConformance
from queue_lib.testing.conformance.priority import PriorityConformance
from queue_lib.testing.conformance.purge import PurgeConformance
from queue_lib.testing.conformance.schedule import ScheduleConformance
from queue_lib.testing.conformance.settle import SettleConformance
from queue_lib.testing.conformance.stats import StatsConformance
from queue_lib.testing.conformance.transactional import TransactionalConformance
from queue_lib.testing.conformance.volume import VolumeConformance
from queue_lib.testing.conformance.wake import WakeConformance

__all__ = ["OwnClockConformance", "StoreCase", "StoreConformance"]


class StoreConformance(
    AppendConformance,
    GroupConformance,
    ClaimConformance,
    SettleConformance,
    JointConformance,
    LeaseConformance,
    PeekConformance,
    FencingConformance,
    OrderConformance,
    PriorityConformance,
    LimitConformance,
    ScheduleConformance,
    PurgeConformance,
    StatsConformance,
    BytesConformance,
    VolumeConformance,
    LifecycleConformance,
    TransactionalConformance,
    WakeConformance,
):
    """Every test that a store has to pass."""
