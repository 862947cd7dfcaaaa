"""The other processes of a case, as seen from here. What they do is in `benchmarks.child`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from benchmarks.databases import Site

__all__ = ["Child"]


class Child:
    """One process on a site. A context manager, which leaves nothing running."""

    def __init__(self, task: str, site: Site, *numbers: int) -> None:
        url = site.url.render_as_string(hide_password=False)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.child", task, url, site.locker_url]
            + [str(number) for number in numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )

    def say(self, line: str) -> None:
        """Send a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """Wait for a line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "a child has ended; what it said is above"
        return line.strip()

    def end(self) -> dict[str, Any]:
        """Let it end; return its last word."""
        said, _ = self._process.communicate()
        assert self._process.returncode == 0, "a child has failed; what it said is above"
        answer: dict[str, Any] = json.loads(said.splitlines()[-1])
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
