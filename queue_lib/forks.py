"""Threads, locks and connections are the parent's: who is told when the process forks."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

from queue_lib.logs import get_logger

__all__ = ["follow_forks", "leave_forks"]

_logger = get_logger("queue_lib")


class _Forker(Protocol):
    def before_fork(self) -> None: ...
    def after_fork(self, *, child: bool) -> None: ...


_forkers: weakref.WeakSet[_Forker] = weakref.WeakSet()  # guarded by _forking
_forking = threading.Lock()  # held over the whole of a fork
_preparing: list[_Forker] = []  # guarded by _forking


def follow_forks(forker: _Forker) -> None:
    """Have `before_fork` and `after_fork` of `forker` called round each fork, while it lives."""
    with _forking:
        _forkers.add(forker)


def leave_forks(forker: _Forker) -> None:
    """Undo `follow_forks`: there is nothing left that a child could share. Idempotent."""
    with _forking:
        _forkers.discard(forker)


def _before() -> None:
    _forking.acquire()
    for forker in list(_forkers):
        _preparing.append(forker)
        try:
            forker.before_fork()
        except Exception:  # one that cannot prepare must not keep the others from it
            _logger.exception("%r could not prepare for a fork", forker)


def _after(*, child: bool) -> None:
    while _preparing:
        forker = _preparing.pop()
        try:
            forker.after_fork(child=child)
        except Exception:  # nor one that cannot go on, the others
            _logger.exception("%r could not go on after a fork", forker)
    _forking.release()


os.register_at_fork(
    before=_before,
    after_in_parent=lambda: _after(child=False),
    after_in_child=lambda: _after(child=True),
)
