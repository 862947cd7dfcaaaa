"""What several processes did, in one file: a line for each event, whole even after a SIGKILL.

An appending write of one short line is atomic on a local file, and nothing is kept in a buffer.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

__all__ = ["Event", "Log"]

Event = dict[str, Any]


class Log:
    """An append-only log that processes share. Thread-safe."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, event: str, **fields: Any) -> None:
        """Append a line. Its instant, `at`, is on the monotonic clock that all processes share."""
        line = {"event": event, "at": time.monotonic_ns(), "pid": os.getpid(), **fields}
        os.write(self._file, f"{json.dumps(line)}\n".encode())

    def read(self, event: str = "") -> list[Event]:
        """Return what was written so far; of one kind of event, if it is named."""
        whole, _, _ = self.path.read_text().rpartition("\n")  # a line may be half there by now
        lines = [json.loads(line) for line in whole.splitlines()]
        return [line for line in lines if event in ("", line["event"])]

    def close(self) -> None:
        """Close the file; it can still be read."""
        os.close(self._file)
