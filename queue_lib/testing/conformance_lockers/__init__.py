"""The suite that every locker passes: subclass `LockerConformance` and say how to make a locker.

::

    # conftest.py
    pytest_plugins = ["queue_lib.testing.plugin"]

    # test_my_locker.py
    from functools import partial
    from queue_lib.testing.conformance_lockers import LockerConformance

    class TestMyLocker(LockerConformance):
        capabilities = frozenset({"processes"})

        @pytest.fixture(name="new_locker")
        def given_new_locker(self, tmp_path):
            return partial(MyLocker, tmp_path / "locks")

The factory is called with ``ttl=timedelta(…)``, how long a lock outlives a dead holder, and is
pickled for other processes. A locker without the capability ``processes`` is called with nothing
and is only tried by threads.
"""

from __future__ import annotations

from queue_lib.testing.conformance_lockers.case import LockerCase
from queue_lib.testing.conformance_lockers.leases import LeaseConformance
from queue_lib.testing.conformance_lockers.processes import ProcessConformance
from queue_lib.testing.conformance_lockers.threads import ThreadConformance

__all__ = ["LockerCase", "LockerConformance"]


class LockerConformance(ThreadConformance, ProcessConformance, LeaseConformance):
    """Every test that a locker has to pass."""
