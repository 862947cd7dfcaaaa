"""Stores that misbehave on cue, round any store: for tests of what depends on one.

`FaultyStore` fails calls, before or after they were applied; `PausingStore` stops a caller in the
middle of a call until the test lets it go on. A cue for ``ack`` or for ``claim`` is also one for
``ack_and_claim``, which is both. Both offer exactly the optional capabilities of the
store that they wrap, also those that this package does not know, and can be put round each other.
"""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

from queue_lib.errors import StoreUnavailableError
from queue_lib.message import Message
from queue_lib.options import StartFrom
from queue_lib.stores.base import Claimed, ClaimRequest, PurgePolicy, Stats, Store

__all__ = ["FaultyStore", "Operation", "Pause", "PausingStore", "StoreWrapper", "operations"]

PAUSE_SECONDS = 20.0
"""How long a test and a paused call wait for each other at most; never reached when all is well."""


class StoreWrapper:
    """A store that passes every call to another one through `call`, for subclasses to step in."""

    def __init__(self, store: Store) -> None:
        self.store = store
        # Optional capabilities are looked for on the value, so they are set on the value.
        for name in dir(store):
            is_method = callable(inspect.getattr_static(store, name))
            if is_method and not name.startswith("_") and not hasattr(self, name):
                setattr(self, name, partial(self.call, name))

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the wrapped store."""
        return getattr(self.store, method)(*args, **kwargs)

    def ensure_group(self, topic: str, group: str, start_from: StartFrom) -> None:
        """See `Store.ensure_group`."""
        self.call("ensure_group", topic, group, start_from)

    def append(self, messages: Sequence[Message]) -> None:
        """See `Store.append`."""
        self.call("append", messages)

    def claim(self, request: ClaimRequest) -> list[Claimed]:
        """See `Store.claim`."""
        claims: list[Claimed] = self.call("claim", request)
        return claims

    def ack(self, claims: Sequence[Claimed]) -> list[str]:
        """See `Store.ack`."""
        held: list[str] = self.call("ack", claims)
        return held

    def retry(self, claim: Claimed, backoff: timedelta, last_error: str) -> bool:
        """See `Store.retry`."""
        held: bool = self.call("retry", claim, backoff, last_error)
        return held

    def kill(self, claim: Claimed, last_error: str) -> bool:
        """See `Store.kill`."""
        held: bool = self.call("kill", claim, last_error)
        return held

    def extend(self, claims: Sequence[Claimed], lease: timedelta) -> list[str]:
        """See `Store.extend`."""
        held: list[str] = self.call("extend", claims, lease)
        return held

    def release(self, claims: Sequence[Claimed]) -> None:
        """See `Store.release`."""
        self.call("release", claims)

    def purge(self, policy: PurgePolicy, batch: int) -> int:
        """See `Store.purge`."""
        gone: int = self.call("purge", policy, batch)
        return gone

    def stats(self, topic: str, group: str) -> Stats:
        """See `Store.stats`."""
        stats: Stats = self.call("stats", topic, group)
        return stats

    def ping(self) -> None:
        """See `Store.ping`."""
        self.call("ping")

    def close(self) -> None:
        """See `Store.close`."""
        self.call("close")


class Operation(NamedTuple):
    """What a call of a store does, or one of the two things that a joint one does."""

    method: str
    args: tuple[Any, ...]
    answer: Any


def operations(method: str, args: tuple[Any, ...], answer: Any = None) -> list[Operation]:
    """Return what a call does: ``ack_and_claim`` is an ``ack`` and a ``claim``.

    `answer` may be the exception that the call raised: then it is that of both.
    """
    if method != "ack_and_claim":
        return [Operation(method, args, answer)]
    acked, claimed = answer if isinstance(answer, tuple) else (answer, answer)
    return [Operation("ack", args[:1], acked), Operation("claim", args[1:], claimed)]


def _cues(method: str, args: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    """Return the names by which a call can be meant, with the arguments of each."""
    return {method: args} | {each.method: each.args for each in operations(method, args)}


class FaultyStore(StoreWrapper):
    """A store that fails on cue. Thread-safe.

    ::

        store = FaultyStore(MemoryStore())
        store.fail_on("ack")                               # the next ack changes nothing and raises
        store.fail_on("ack", times=3, applied=True)        # three are applied, their answers lost
        store.fail_on("extend", StoreError("broken"), times=None)      # until `heal`
        store.fail_on("append", when=lambda messages: messages[0].topic == "orders.dead")
    """

    def __init__(self, store: Store) -> None:
        self._lock = threading.Lock()
        self._faults: list[_Fault] = []  # guarded by _lock
        self.raised: Counter[str] = Counter()  # how many calls of each method were made to fail
        super().__init__(store)

    def fail_on(
        self,
        method: str,
        error: BaseException | None = None,
        *,
        times: int | None = 1,
        applied: bool = False,
        when: Callable[..., bool] | None = None,
    ) -> None:
        """Make the next `times` calls of `method` fail; `None`: every one, until `heal`.

        `error` is what they raise, by default a `StoreUnavailableError`. `applied`: the call takes
        effect first and only its answer is lost. `when` is asked with the arguments of a call
        whether it is meant. Cues for the same method are used up in the order they were given.
        """
        with self._lock:
            self._faults.append(_Fault(method, error, times, applied, when))

    def heal(self, method: str | None = None) -> None:
        """Forget the cues for `method`; `None`: all cues."""
        with self._lock:
            self._faults = [
                fault for fault in self._faults if method is not None and fault.method != method
            ]

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the wrapped store, and fail if it is its turn."""
        fault = self._next(_cues(method, args), kwargs)
        if fault is None:
            return super().call(method, *args, **kwargs)
        if fault.applied:
            super().call(method, *args, **kwargs)
        raise fault.error or StoreUnavailableError(f"{method}: made to fail")

    def _next(self, calls: dict[str, tuple[Any, ...]], kwargs: dict[str, Any]) -> _Fault | None:
        with self._lock:
            for fault in self._faults:
                if fault.method not in calls or fault.times == 0:
                    continue
                if fault.when is None or fault.when(*calls[fault.method], **kwargs):
                    if fault.times is not None:
                        fault.times -= 1
                    self.raised[fault.method] += 1
                    return fault
        return None


class _Fault:
    def __init__(
        self,
        method: str,
        error: BaseException | None,
        times: int | None,
        applied: bool,
        when: Callable[..., bool] | None,
    ) -> None:
        self.method, self.error, self.applied, self.when = method, error, applied, when
        self.times = times  # left; None: without end


class PausingStore(StoreWrapper):
    """A store that stops a caller on cue, before or after its call was applied. Thread-safe.

    ::

        with store.pause_on("ack") as pause:       # the next ack
            queue.publish(message)
            pause.wait_reached()                # somebody is inside it, nothing is applied yet
            ...                                 # what must not go wrong now
        # left: it goes on
    """

    def __init__(self, store: Store) -> None:
        self._lock = threading.Lock()
        self._pauses: list[Pause] = []  # guarded by _lock
        super().__init__(store)

    def pause_on(self, method: str, *, applied: bool = False) -> Pause:
        """Stop the next call of `method`: before it is applied, or after."""
        pause = Pause(method, applied)
        with self._lock:
            self._pauses.append(pause)
        return pause

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the wrapped store, and stop if it is its turn."""
        with self._lock:
            calls = _cues(method, args)
            pause = next((pause for pause in self._pauses if pause.method in calls), None)
            if pause is not None:
                self._pauses.remove(pause)
        if pause is None:
            return super().call(method, *args, **kwargs)
        if not pause.applied:
            pause.stop()
        answer = super().call(method, *args, **kwargs)
        if pause.applied:
            pause.stop()
        return answer


class Pause:
    """One call that stops: the handshake between it and the test."""

    def __init__(self, method: str, applied: bool) -> None:
        self.method, self.applied = method, applied
        self._reached = threading.Event()
        self._resumed = threading.Event()

    def wait_reached(self) -> None:
        """Wait until a caller has stopped.

        Raises:
            TimeoutError: nobody came.
        """
        if not self._reached.wait(PAUSE_SECONDS):
            raise TimeoutError(f"{self.method}: nobody called it")

    def resume(self) -> None:
        """Let the caller go on; if none came yet, it will not stop."""
        self._resumed.set()

    def stop(self) -> None:
        """Called by the store in the caller's thread."""
        self._reached.set()
        if not self._resumed.wait(PAUSE_SECONDS):
            raise TimeoutError(f"{self.method}: was not resumed")

    def __enter__(self) -> Self:
        """Use it as a context manager: leaving it resumes the caller."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Resume the caller."""
        self.resume()
