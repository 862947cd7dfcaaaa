"""Another process that takes locks, and does what a test tells it to.

The test's side is `Member`. The other side is this module, run as a program: it reads a JSON
list of a command and its arguments from each line, and answers with a line.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from queue_lib.errors import StoreUnavailableError
from queue_lib.locks import DistributedLocker, LockHandle

__all__ = ["Member"]

_LONG = timedelta(seconds=60)


class Member:
    """A process with a locker of its own."""

    def __init__(self, new_locker: Callable[..., DistributedLocker], ttl: timedelta) -> None:
        recipe = base64.b64encode(pickle.dumps((new_locker, ttl))).decode()
        self._process = subprocess.Popen(  # noqa: S603 - this very module
            [sys.executable, "-m", __name__, recipe],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that `kill` takes what it forked along
        )

    def tell(self, command: str, *arguments: Any) -> None:
        """Have something done, without waiting for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, *arguments]) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        """Wait for the answer to what was told first."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, command: str, *arguments: Any) -> Any:
        """Have something done, and wait for the answer."""
        self.tell(command, *arguments)
        return self.hear()

    def stop(self) -> None:
        """Stop it in the middle of whatever it does: SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a crash does: SIGKILL. Idempotent."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    close = kill


class _Program:
    """What the other process does."""

    def __init__(self, locker: DistributedLocker) -> None:
        self._locker = locker
        self._handle: LockHandle | None = None

    def obey(self, command: str, *arguments: Any) -> Any:
        return getattr(self, f"do_{command}")(*arguments)

    def do_acquire(self, key: str, seconds: float) -> int | None:
        """Return the fence; `None`: somebody else holds the lock."""
        try:
            self._handle = self._locker.acquire(key, timedelta(seconds=seconds))
        except StoreUnavailableError:
            return None
        return self._handle.fence

    def do_look(self) -> dict[str, bool]:
        assert self._handle is not None
        # In this order: after a stop, the very first look must be right.
        return {"held": self._handle.is_held(), "lost": self._handle.lost.is_set()}

    def do_release(self) -> None:
        assert self._handle is not None
        self._handle.release()

    def do_count(self, key: str, path: str, times: int) -> list[int]:
        """Count in a file that nothing else protects; return the fences."""
        fences = []
        for _ in range(times):
            with self._locker.acquire(key, _LONG) as handle:
                count = int(Path(path).read_text())
                time.sleep(0)  # if anybody else is in here, let him come first
                Path(path).write_text(str(count + 1))
                fences.append(handle.fence)
        return fences

    def do_contend(self, key: str, seconds: float, hold: float) -> dict[str, float]:
        """Take the lock again and again; return how often, and the longest wait."""
        end, count, longest = time.monotonic() + seconds, 0, 0.0
        while (asked := time.monotonic()) < end:
            with self._locker.acquire(key, _LONG):
                longest = max(longest, time.monotonic() - asked)
                count += 1
                time.sleep(hold)
        return {"count": count, "longest": longest}

    def do_fork(self, key: str, other: str) -> dict[str, Any]:
        """Fork while holding `key`; return what the child found, who took `other`, too."""
        receiving, sending = os.pipe()
        if not (child := os.fork()):
            answer = {**self.do_look(), "other": self.do_acquire(other, 10)}
            self.do_release()
            answer["same"] = self.do_acquire(key, 0)
            os.write(sending, json.dumps(answer).encode())
            os._exit(0)
        os.close(sending)
        with os.fdopen(receiving) as report:
            found: dict[str, Any] = json.load(report)
        os.waitpid(child, 0)
        return found


def _main(recipe: str) -> None:
    new_locker, ttl = pickle.loads(base64.b64decode(recipe))  # noqa: S301 - from our own parent
    program = _Program(new_locker(ttl=ttl))
    _say(None)
    for line in sys.stdin:
        _say(program.obey(*json.loads(line)))


def _say(answer: Any) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(sys.argv[1])
