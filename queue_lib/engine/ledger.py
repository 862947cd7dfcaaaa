"""What one subscription holds, and who may still write an outcome for it.

Three threads meet here: the pump (claims, acknowledges), the handlers, and the heartbeat. A run
occupies a slot from its claim until its handler ended *and* its outcome was written or became
void, so the slots bound both the handlers that run and the leases that are held.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from queue_lib.engine.run import Phase, Run
from queue_lib.message import CancelReason

__all__ = ["Ledger"]

_here = threading.local()  # .handles: this thread runs handlers, of whichever subscription


class Ledger:
    """The runs of a subscription. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, Run] = {}  # by claim token; guarded by _lock
        self._latest: dict[str, Run] = {}  # of each delivery, by its id; guarded by _lock
        self._workers: dict[Run, int] = {}  # the thread of each handler; guarded by _lock
        self._closers: set[int | None] = set()  # handlers that wait here; guarded by _lock
        self._waiters = 0  # guarded by _lock
        self._emptied = threading.Condition(self._lock)

    def __len__(self) -> int:
        """Slots that are taken."""
        return len(self._runs)

    def add(self, runs: Iterable[Run]) -> list[Run]:
        """Enter fresh claims; return the runs of ours that thereby turn out to be lost.

        A store hands out a delivery again only after its lease ended. The heartbeat would not
        notice: it asks by token and is answered by delivery, and the delivery is held again.
        """
        superseded = []
        with self._lock:
            for run in runs:
                previous = self._latest.get(run.claim.delivery_id)
                if previous is not None:
                    superseded.append(previous)
                self._latest[run.claim.delivery_id] = run
                self._runs[run.claim.claim_token] = run
        return self._void(superseded, "lease lost")

    def start(self, run: Run) -> bool:
        """A thread takes the run; `False` if it is void by now (and its slot is free)."""
        with self._lock:
            if run.phase is Phase.VOID:
                self._remove_locked(run)
                return False
            run.phase = Phase.RUNNING
            self._workers[run] = threading.get_ident()
        _here.handles = True
        return True

    def end(self, run: Run) -> bool:
        """The handler returned; `False` if its outcome is void (and its slot is free)."""
        with self._lock:
            if run.phase is Phase.VOID:
                self._remove_locked(run)
                return False
            run.phase = Phase.SETTLING
            return True

    def settled(self, runs: Iterable[Run]) -> None:
        """Outcomes were written, or given up: the slots are free."""
        with self._lock:
            for run in runs:
                run.phase = Phase.VOID
                self._remove_locked(run)

    def lose(self, run: Run) -> bool:
        """The lease is lost. Cancels the run, unless its outcome is being written.

        An outcome on its way finds out by itself whether it still holds: a delivery that was
        acknowledged a moment ago is missing from a heartbeat's answer, too.
        """
        return self._void([run], "lease lost") != []

    def abandon(self) -> list[Run]:
        """The subscription ends: cancel the runs that are left and return them, to be released.

        Their slots count as free, though their handlers may go on for a while.
        """
        with self._lock:
            runs = list(self._runs.values())
        voided = self._void(runs, "closed")
        with self._lock:
            for run in runs:
                if run.phase is Phase.VOID:
                    self._runs.pop(run.claim.claim_token, None)
        return voided

    def drop_waiting(self) -> list[Run]:
        """Void the runs that no thread has taken, and free their slots; return them."""
        with self._lock:
            waiting = [run for run in self._runs.values() if run.phase is Phase.WAITING]
            for run in waiting:
                run.phase = Phase.VOID
                self._remove_locked(run)
        return waiting

    def renewable(self) -> list[Run]:
        """Return the runs whose leases the heartbeat should renew."""
        with self._lock:
            return [
                run for run in self._runs.values() if run.phase is not Phase.VOID and run.may_renew
            ]

    def wait_empty(self, timeout: float | None) -> bool:
        """Wait until every slot is free and every handler ended; say whether they did.

        A handler that waits here does not wait for itself, nor for handlers of this subscription
        that close it, too: they would wait for each other. Everybody else waits for all of them.
        """
        me = threading.get_ident()
        is_empty = self._is_empty_locked
        if getattr(_here, "handles", False):
            is_empty = self._is_empty_but_for_closers_locked
        with self._emptied:
            if me in self._workers.values():
                self._closers.add(me)
                self._emptied.notify_all()
            self._waiters += 1
            try:
                return self._emptied.wait_for(is_empty, timeout)
            finally:
                self._waiters -= 1

    def has_closers(self) -> bool:
        """Say whether handlers run that nobody waited for, because they close what runs them."""
        with self._lock:
            return bool(self._closers)

    def runs_here(self) -> bool:
        """Say whether the calling thread is one of the handlers."""
        with self._lock:
            return threading.get_ident() in self._workers.values()

    def _is_empty_locked(self) -> bool:
        return not self._runs and not self._workers

    def _is_empty_but_for_closers_locked(self) -> bool:
        return all(worker in self._closers for worker in self._workers.values()) and all(
            run in self._workers for run in self._runs.values()
        )

    def _void(self, runs: Sequence[Run], reason: CancelReason) -> list[Run]:
        voided = []
        with self._lock:
            for run in runs:
                if run.phase in (Phase.WAITING, Phase.RUNNING):
                    run.phase = Phase.VOID
                    voided.append(run)
        for run in voided:
            run.cancel(reason)
        return voided

    def _remove_locked(self, run: Run) -> None:
        self._runs.pop(run.claim.claim_token, None)
        if self._latest.get(run.claim.delivery_id) is run:
            del self._latest[run.claim.delivery_id]
        worker = self._workers.pop(run, None)
        # Its thread may be in the next run by now, and close the subscription there.
        if self._closers and worker not in self._workers.values():
            self._closers.discard(worker)
        if self._waiters:
            self._emptied.notify_all()
