"""A gunicorn of our own: started on a free port, listened to, and always ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

from tests.examples.running import SECONDS, environment

__all__ = ["Gunicorn"]


class Gunicorn:
    """A running server with two workers. Leaving the `with` block kills what is left of it."""

    def __init__(self, application: str, *options: str, cwd: Path, **variables: str) -> None:
        self._said: SimpleQueue[str] = SimpleQueue()
        self.log: list[str] = []
        command = [sys.executable, "-m", "gunicorn", application, "--bind", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*command, *options],
            cwd=cwd,
            env=environment(cwd, **variables),
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that its workers can be killed with it
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            (self.url,) = self.expect(r"Listening at: (http://\S+)", 1)
            self.workers = {int(pid) for pid in self.expect(r"worker (\d+) consumes", 2)}
        except BaseException:
            self.kill()
            raise

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._said.put(line)

    def expect(self, pattern: str, times: int) -> list[str]:
        """Wait until lines with `pattern` were logged so often; return what it captured."""
        found: list[str] = []
        deadline = time.monotonic() + SECONDS
        while len(found) < times:
            try:
                line = self._said.get(timeout=max(deadline - time.monotonic(), 0))
            except Empty:
                raise AssertionError(f"no {pattern!r} in:\n{''.join(self.log)}") from None
            self.log.append(line)
            found += re.findall(pattern, line)
        return found

    def ask(self, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request; return the status and the decoded answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def terminate(self) -> int:
        """Send SIGTERM to the master and wait for its end; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)

    def kill(self) -> None:
        """End it the hard way, workers included. Idempotent."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
