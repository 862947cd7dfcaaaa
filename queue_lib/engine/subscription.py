"""A running consumer: one pump, a pool of handler threads, one heartbeat."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from datetime import timedelta
from uuid import uuid4

from queue_lib.engine.heartbeat import Heartbeat
from queue_lib.engine.ledger import Ledger
from queue_lib.engine.lifecycle import Deadline
from queue_lib.engine.pool import HandlerPool
from queue_lib.engine.pump import Pump
from queue_lib.engine.run import Run
from queue_lib.engine.settle import Settler
from queue_lib.interfaces import Handler, SubscriptionHealth
from queue_lib.logs import get_logger
from queue_lib.message import Message
from queue_lib.options import SubscribeOptions
from queue_lib.stores.base import ClaimRequest, Store

__all__ = ["GRACE", "StoreSubscription"]

GRACE = 0.5
"""Seconds that `close` takes at most beyond its timeout, however slow the store is."""

_logger = get_logger("queue_lib.engine")


class StoreSubscription:
    """A `Subscription` on a `Store`. Thread-safe."""

    def __init__(
        self,
        store: Store,
        topic: str,
        group: str,
        handler: Handler,
        options: SubscribeOptions,
        publish: Callable[[Message], None],
    ) -> None:
        self.topic, self.group = topic, group
        self._pid = os.getpid()
        self._store = store
        self._handler = handler
        self._ledger = Ledger()
        self._ended = threading.Event()
        name = f"{topic}:{group}"
        request = ClaimRequest(
            topic, group, _runner_id(), options.batch_size, options.lease_duration,
            options.max_in_flight,
        )  # fmt: skip
        self._pool = HandlerPool(f"queue-handler:{name}", options.concurrency, self._execute)
        self._pump = Pump(
            f"queue-pump:{name}",
            store,
            self._ledger,
            request,
            options,
            dispatch=self._pool.submit,
            has_waiting=self._pool.has_waiting,
            spread=self._pool.spread,
            ended=self._end,
        )
        self._heartbeat = Heartbeat(
            f"queue-heartbeat:{name}", store, self._ledger, options.lease_duration
        )
        self._settler = Settler(store, options, publish, self._pump.retry_due)

    def start(self) -> None:
        """Start consuming. Called once, by the queue."""
        self._heartbeat.service.start()
        self._pump.service.start()

    @property
    def pump(self) -> Pump:
        """What the queue's poller looks after."""
        return self._pump

    def wake(self) -> None:
        """Claim now: something was published to the topic."""
        self._pump.wake()

    @property
    def in_this_process(self) -> bool:
        """`False` in a forked child: its parent's threads are not here."""
        return self._pid == os.getpid()

    def health(self) -> SubscriptionHealth:
        """Tell how the threads are doing."""
        pump, heartbeat = self._pump, self._heartbeat
        now = time.monotonic()
        return SubscriptionHealth(
            topic=self.topic,
            group=self.group,
            running=self.in_this_process and pump.service.alive and heartbeat.service.alive,
            held=len(self._ledger),
            since_claim=_since(pump.last_claim, now),
            since_heartbeat=_since(heartbeat.last_success, now),
            error=pump.service.error or heartbeat.service.error,
        )

    # -- closing -------------------------------------------------------------------------------

    def close(self, timeout: float | timedelta | None = None) -> bool:
        """See `Subscription.close`."""
        deadline = Deadline(timeout)
        self.begin_close()
        ended = self.drain(deadline)
        self.join(Deadline(GRACE))
        return ended

    def begin_close(self) -> None:
        """Stop claiming and give back what no thread has taken. Does not wait."""
        if self.in_this_process:
            self._pump.stop_claiming()

    def drain(self, deadline: Deadline) -> bool:
        """Wait for the handlers, at the deadline cancel the rest; say whether all have ended."""
        if not self.in_this_process:
            return True
        ended = self._ledger.wait_empty(deadline.left())
        if not ended:
            self._settler.hurry()
            abandoned = self._ledger.abandon()
            self._pump.hurry(abandoned)
            for run in abandoned:
                run.report_abandoned()
        return ended and not self._ledger.has_closers()

    def join(self, bound: Deadline) -> bool:
        """Wait until a closed subscription has left the store; say whether it has."""
        if not self.in_this_process:
            return True
        if self.runs_here():  # the others wait for our caller
            return False
        threads = (self._pump.service, self._heartbeat.service)
        left = [thread.join(bound.left()) for thread in threads]
        if self._ledger.wait_empty(0):  # else handlers that were given up are still running
            self._pool.join(bound.left())
        return all(left)

    @property
    def ended(self) -> bool:
        """Whether it was closed and its threads are done."""
        return not self.in_this_process or self._ended.is_set()

    def runs_here(self) -> bool:
        """Say whether the calling thread is one of the handlers."""
        return self.in_this_process and self._ledger.runs_here()

    def _end(self) -> None:
        # Called by the pump once nothing is held and nothing is left to write: the last one out.
        self._heartbeat.service.stop()
        self._pool.stop()
        self._ended.set()

    # -- running, in a handler thread ----------------------------------------------------------

    def _execute(self, run: Run) -> float:
        try:
            return self._run(run)
        except BaseException:
            # Nobody will settle it any more: let go, or the heartbeat would hold it for ever.
            self._ledger.settled([run])
            self._pump.slot_freed(run)
            raise

    def _run(self, run: Run) -> float:
        """Run the handler and see to its outcome; return the seconds that the handler took."""
        if not self._ledger.start(run):
            self._pump.slot_freed(run)
            return 0.0
        spent = self._settler.is_spent(run.claim)
        began = time.perf_counter()
        error = None if spent else self._handle(run)
        took = time.perf_counter() - began
        if not self._ledger.end(run):
            self._pump.slot_freed(run)
        elif error is None and not spent:
            self._pump.succeeded(run)
        else:
            if error is None:
                self._settler.bury_spent(run)
            else:
                self._settler.fail(run, error)
            self._ledger.settled([run])
            self._pump.slot_freed(run)
        return took

    def _handle(self, run: Run) -> BaseException | None:
        """Run the handler; return what it raised."""
        try:
            result = self._handler(run.delivery())
            if result is not None:
                _check_has_run(result)
        # Any exception is a failed attempt, also SystemExit and KeyboardInterrupt: a handler
        # must not be able to end a thread of the pool, or the process.
        except BaseException as error:
            claim = run.claim
            _logger.warning(
                "delivery %s of %s to %s failed (attempt %d)",
                claim.delivery_id, self.topic, self.group, claim.attempt,
                exc_info=error,
            )  # fmt: skip
            return error
        return None


def _check_has_run(result: object) -> None:
    """Refuse what a coroutine function or a generator function returns: none of it has run."""
    if isinstance(result, Coroutine | Generator):
        result.close()  # or Python warns, too, that nobody awaited it
    elif not isinstance(result, Awaitable | AsyncGenerator):
        return
    raise TypeError(
        f"the handler returned a {type(result).__name__}, which has not run: handlers are plain "
        "functions"
    )


def _since(instant: float | None, now: float) -> timedelta | None:
    return None if instant is None else timedelta(seconds=max(now - instant, 0.0))


def _runner_id() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
