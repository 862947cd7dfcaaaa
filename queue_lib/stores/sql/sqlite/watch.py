"""Wait until a file is written to: a commit of another process is heard at once, not at a look.

Linux only (inotify, of which Python's library knows nothing). Elsewhere, and where the system
refuses a watch, waiting is sleeping.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from pathlib import Path
from typing import Self

__all__ = ["FileWatch"]

_IN_MODIFY = 0x2


class FileWatch:
    """Watches one file, which exists. A context manager; used by one thread."""

    def __init__(self, path: Path) -> None:
        self._events = _watch(path)

    @property
    def is_real(self) -> bool:
        """Whether `wait` hears of anything."""
        return self._events is not None

    def wait(self, timeout: float) -> bool:
        """Wait for at most `timeout` seconds; say whether the file was written to."""
        if self._events is None:
            time.sleep(timeout)
            return False
        poll = select.poll()  # not select(), which knows no descriptor above 1023
        poll.register(self._events, select.POLLIN)
        ready = poll.poll(timeout * 1000)
        if ready:
            os.read(self._events, 1 << 16)  # all that came together
        return bool(ready)

    def close(self) -> None:
        """Stop watching. Idempotent."""
        events, self._events = self._events, None
        if events is not None:
            os.close(events)

    def __enter__(self) -> Self:
        """Leaving the context closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def _watch(path: Path) -> int | None:
    """Return a descriptor that is readable once the file was modified, `None`: there is none."""
    try:
        libc = ctypes.CDLL(None)
        events: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        watched: int = libc.inotify_add_watch(events, os.fsencode(path), _IN_MODIFY)
    except (OSError, AttributeError, TypeError):  # another system
        return None
    if events >= 0 and watched < 0:
        os.close(events)
    return events if events >= 0 and watched >= 0 else None
