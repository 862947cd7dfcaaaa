"""What a subscription says to the store on the good path, by one thread at a time.

It acknowledges what handlers finished, then claims as much as there are free slots. A thread of its
own does that, and then sleeps until the first of: a wake, an outcome to acknowledge, the next due
time known, the poll interval. But the handler that ends last, with none left running, takes the
pump's turn itself and goes on with what it claimed: waking the pump, which would then wake a
handler, takes longer than everything else that a short batch needs.

Acknowledgements are not held back to fill a batch: a batch is what came together while the last
statement ran. Only while claimed runs still wait for a thread is nobody woken for what ended: the
thread that ended it takes the next, and the last of them acknowledges them all. If that one takes
long, the pump notices within two ticks.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta

from queue_lib.engine.ledger import Ledger
from queue_lib.engine.lifecycle import Service, is_bug
from queue_lib.engine.plan import Plan
from queue_lib.engine.run import Run
from queue_lib.errors import QueueClosedError
from queue_lib.logs import get_logger
from queue_lib.options import SubscribeOptions
from queue_lib.stores.base import AckingClaimer, Claimed, ClaimRequest, Peek, Peeker, Store

__all__ = ["MAX_ACK_BATCH", "Pump"]

MAX_ACK_BATCH = 256
"""Deliveries acknowledged in one call at most."""

_BUSY, _STEP = 0.05, 0.005  # for how long after a claim the handlers are looked after; how often
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # between tries while the store fails, in seconds

_logger = get_logger("queue_lib.engine")


class Pump:
    """Claims and acknowledges for one subscription."""

    def __init__(
        self,
        name: str,
        store: Store,
        ledger: Ledger,
        request: ClaimRequest,
        options: SubscribeOptions,
        *,
        dispatch: Callable[[list[Run]], None],
        has_waiting: Callable[[], bool],
        spread: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self.last_claim: float | None = None  # monotonic; when the store answered last
        self.name = request.topic, request.group
        self.plan = Plan(
            options.poll_interval.total_seconds(), is_looked_after=isinstance(store, Peeker)
        )
        self.service = Service(name, self._loop)
        self._store = store
        self._joint = store if isinstance(store, AckingClaimer) else None
        self._ledger = ledger
        self._request = request
        self._options = options
        self._dispatch = dispatch  # hands runs to the handler threads
        self._has_waiting = has_waiting  # whether some of them wait for a thread
        self._spread = spread  # has more of them look, if runs wait
        self._ended = ended  # told when this thread is done for good
        self._signal = threading.Event()  # "look again": set by anybody, cleared by the pump
        self._claiming = True  # cleared when the subscription ends
        self._hurried = False  # set at the deadline of a close: one more try, then let go
        self._abandoned: deque[Run] = deque()  # to be released
        self._done: deque[Run] = deque()  # handlers append, the pump takes
        self._turn = threading.Lock()
        # Guarded by _turn, as is each call of the store:
        self._next_ack = 0.0
        self._pause = _FIRST_PAUSE
        self._last_batch = -_BUSY  # monotonic; when something was claimed last

    # -- called from other threads -----------------------------------------------------------

    def succeeded(self, run: Run) -> None:
        """A handler returned: acknowledge its delivery."""
        self._done.append(run)
        if len(self._done) < len(self._ledger):
            if not (self._has_waiting() and self._is_ticking(_STEP)):
                self._look()
        elif not self._take_turn():
            self._look()

    def wake(self) -> None:
        """Something may be due: claim now, if there are free slots."""
        self.plan.wake()
        self._look()

    def looked_after(self, peek: Peek) -> None:
        """The poller has looked, as this one had asked for."""
        if not self._turn.locked():  # else a call is under way, and the store may be stuck in it
            self.last_claim = time.monotonic()
        if self.plan.looked_after(peek):
            self._look()

    def slot_freed(self, run: Run) -> None:
        """A run ended without an acknowledgement: its slot, perhaps its lane, is free."""
        if self._lets_another_run(run):
            self.plan.wake()
        self._look()

    def retry_due(self, delay: timedelta) -> None:
        """A delivery of ours will be due again after `delay`."""
        self.plan.retry_due(delay)
        self._look()

    def stop_claiming(self) -> None:
        """Go on acknowledging, and end once the ledger is empty and everything was written."""
        self._claiming = False
        self._look()

    def hurry(self, abandoned: list[Run]) -> None:
        """The time to close is up: release these, and give up what cannot be written now."""
        self._abandoned.extend(abandoned)
        self._hurried = True
        self._look()

    def _look(self) -> None:
        if not self._signal.is_set():
            self._signal.set()

    def _take_turn(self) -> bool:
        """Acknowledge and claim in a handler's thread; say whether that leaves the pump nothing."""
        if not (self._claiming and self._turn.acquire(blocking=False)):
            return False
        try:
            if self._claiming:
                self._acknowledge_and_claim()
            # With a free slot the pump has to find out anew how long to sleep, and what could not
            # be acknowledged it has to try again.
            return not self._done and len(self._ledger) >= self._options.concurrency
        except BaseException:
            # Not the handler's fault; the pump's thread meets it, too, and is supervised.
            _logger.exception("%s failed in a handler's thread", self.service.name)
            return False
        finally:
            self._turn.release()

    # -- the thread --------------------------------------------------------------------------

    def _lets_another_run(self, run: Run) -> bool:
        # The next of its key, or one above the cap, which no claim could find before. Nothing
        # else becomes due because a delivery ended.
        return self._request.max_in_flight > 0 or run.claim.message.key != ""

    def _loop(self, stop: threading.Event) -> None:
        # After a failure of this loop: what it had claimed is not forgotten, and it looks anew.
        self._dispatch([])
        self.plan.wake()
        while not stop.is_set():
            self._signal.clear()  # before looking: what comes after is seen in the next round
            wait = None
            with self._turn:
                if self._claiming:
                    wait = self._acknowledge_and_claim()
                else:
                    self._acknowledge()
                    self._give_back()
                # Looked at inside the turn: a handler's turn that claims a moment later sees that
                # there is no claiming any more; one that has claimed a moment before is seen here.
                if not (self._claiming or len(self._ledger) or self._done or self._abandoned):
                    break
            if self._done:
                left = self._next_ack - time.monotonic()
                wait = left if wait is None else min(wait, left)
            if wait is None or wait > 0:
                self._sleep(wait)
        self._ended()

    def _sleep(self, wait: float | None) -> None:
        """Sleep until there is a signal; while there is work, look after the handlers as well."""
        oldest: Run | None = None
        while self._is_ticking():
            step = _STEP if wait is None else min(wait, _STEP)
            if self._signal.wait(step):
                return
            self._spread()
            before, oldest = oldest, self._oldest_done()
            if oldest is not None and oldest is before:
                return
            if wait is not None:
                wait -= step
                if wait <= 0:
                    return
        self._signal.wait(wait)

    def _is_ticking(self, margin: float = 0.0) -> bool:
        return time.monotonic() + margin < self._last_batch + _BUSY

    def _oldest_done(self) -> Run | None:
        try:
            return self._done[0]
        except IndexError:
            return None

    def _give_back(self) -> None:
        """Release what no thread has taken, and what was abandoned; no attempt is spent."""
        runs = self._ledger.drop_waiting()
        while self._abandoned:
            runs.append(self._abandoned.popleft())
        if runs:
            try:
                self._store.release([run.claim for run in runs])
            except Exception as error:  # noqa: BLE001 - a store is foreign code
                _logger.warning(
                    "%s: releasing %d deliveries failed; they run again when their leases end: %s",
                    self.service.name, len(runs), error,
                )  # fmt: skip

    def _acknowledge(self) -> None:
        while self._done and self._may_acknowledge():
            self._ack(self._take_done())

    def _ack(self, runs: list[Run]) -> None:
        try:
            held = self._store.ack([run.claim for run in runs])
        except QueueClosedError:
            self._ledger.settled(runs)
        except BaseException as error:
            self._ack_failed(runs, error)  # whatever it was: nobody else remembers these
            if not isinstance(error, Exception):
                raise
        else:
            self._acked(runs, held)
            if any(map(self._lets_another_run, runs)):
                self.plan.wake()

    def _acknowledge_and_claim(self) -> float | None:
        if self._joint is not None and self._done and self._may_acknowledge():
            if len(self._done) < len(self._ledger):
                time.sleep(0)  # handlers that are just about to end go first, and come along
            runs = self._take_done()
            if self.plan.is_due(time.monotonic()) or any(map(self._lets_another_run, runs)):
                return self._ack_and_claim(self._joint, runs)
            self._ack(runs)
        self._acknowledge()
        return self._claim()

    def _ack_and_claim(self, store: AckingClaimer, runs: list[Run]) -> float | None:
        want = self._want(len(runs))
        self.plan.begin()
        asked = time.monotonic()
        try:
            held, batch = store.ack_and_claim([run.claim for run in runs], self._sized(want))
        except QueueClosedError:
            self._ledger.settled(runs)
            self._claiming = False
            return None
        except BaseException as error:
            self._ack_failed(runs, error)
            if not isinstance(error, Exception):
                raise
            self.plan.failed(self._next_ack)
            return self.plan.wait(time.monotonic())
        self._acked(runs, held)
        return self._claimed(batch, want, asked)

    def _may_acknowledge(self) -> bool:
        return self._hurried or time.monotonic() >= self._next_ack

    def _take_done(self) -> list[Run]:
        return [self._done.popleft() for _ in range(min(len(self._done), MAX_ACK_BATCH))]

    def _acked(self, runs: list[Run], held: list[str]) -> None:
        self._pause = _FIRST_PAUSE
        self._ledger.settled(runs)
        if len(held) < len(runs):
            self._report_lost([run for run in runs if run.claim.delivery_id not in held])

    def _ack_failed(self, runs: list[Run], error: BaseException) -> None:
        now = time.monotonic()
        lease = self._options.lease_duration.total_seconds()
        again: list[Run] = []
        given_up: list[Run] = []
        for run in runs:
            if run.renew_until is None:
                run.renew_until = now + lease  # a live process must not hold it for ever
            hopeful = now <= max(run.held_until, run.renew_until) and not self._hurried
            (again if hopeful else given_up).append(run)
        self._done.extendleft(reversed(again))
        self._next_ack = now + self._next_pause()
        self.service.error = f"ack: {error}"
        _logger.warning(
            "%s: acknowledging %d failed: %s", self.service.name, len(runs), error,
            exc_info=is_bug(error),
        )  # fmt: skip
        if given_up:
            self._ledger.settled(given_up)
            _logger.error(
                "%s: gave up acknowledging %d deliveries; they run again when their leases end",
                self.service.name, len(given_up),
            )  # fmt: skip

    def _report_lost(self, runs: list[Run]) -> None:
        for run in runs:
            _logger.warning(
                "delivery %s of %s to %s (attempt %d): its lease was lost before it was "
                "acknowledged; it runs again",
                run.claim.delivery_id, run.claim.message.topic, run.claim.group, run.claim.attempt,
            )  # fmt: skip

    def _claim(self) -> float | None:
        """Claim if it is time to; return the seconds until it is time again.

        `None`: a signal will tell, that of a run that ended or of the poller.
        """
        want = self._want()
        if want < 1:
            return None  # a settled run signals
        now = time.monotonic()
        if not self.plan.is_due(now):
            return self.plan.wait(now)
        self.plan.begin()
        asked = time.monotonic()
        try:
            batch = self._store.claim(self._sized(want))
        except QueueClosedError:
            self._claiming = False
            return None
        except Exception as error:  # a store is foreign code; consuming goes on
            self.service.error = f"claim: {error}"
            self.plan.failed(time.monotonic() + self._next_pause())
            _logger.warning(
                "%s: claiming failed: %s", self.service.name, error, exc_info=is_bug(error)
            )
            return self.plan.wait(time.monotonic())
        return self._claimed(batch, want, asked)

    def _want(self, freed: int = 0) -> int:
        """Return how many deliveries to claim, `freed` slots being about to come free."""
        free = self._options.concurrency - len(self._ledger) + freed
        return min(self._options.batch_size, free)

    def _claimed(self, batch: list[Claimed], want: int, asked: float) -> float | None:
        self._pause = _FIRST_PAUSE
        self.service.succeeded()
        self.last_claim = time.monotonic()
        if batch:
            self._last_batch = self.last_claim
            held_until = asked + self._options.lease_duration.total_seconds()
            runs = [Run(claim, held_until) for claim in batch]
            for lost in self._ledger.add(runs):
                lost.report_lost()
            # Entered first, checked second: a close that began meanwhile either sees these runs
            # and waits for them, or is seen here, and they are given back without being started.
            if self._claiming:
                self._dispatch(runs)
        self.plan.claimed(batch, full=len(batch) >= want)
        return self.plan.wait(time.monotonic())

    def _sized(self, want: int) -> ClaimRequest:
        request = self._request
        return ClaimRequest(
            request.topic, request.group, request.runner_id, want, request.lease,
            request.max_in_flight,
        )  # fmt: skip

    def _next_pause(self) -> float:
        pause = self._pause
        self._pause = min(pause * 2, _LONGEST_PAUSE)
        return pause * random.uniform(0.8, 1.2)
