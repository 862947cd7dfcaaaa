"""The demo tells its whole story, on a terminal and into a pipe, and ends by itself."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from queue_lib import message
from tests.examples.running import EXAMPLES, SECONDS, environment

pytestmark = [pytest.mark.processes, pytest.mark.slow]

DEMO = [sys.executable, "-W", "error", str(EXAMPLES / "demo.py")]


def check_story(said: str) -> None:
    headers = [value for name, value in vars(message).items() if name.startswith("HEADER_")]
    for part in (*headers, "attempt 3 of 3 failed, gives up", "due in 6 s", "Closed: every"):
        assert part in said
    for customer in ("anna", "ben", "cleo"):
        for group in ("billing", "warehouse"):
            assert re.search(rf"{group} {customer} .*placed, changed, confirmed", said)
    assert re.search(r"billing\W+0\W+0\W+1\W", said)  # pending, leased, dead
    assert re.search(r"warehouse\W+0\W+0\W+1\W", said)


def test_into_a_pipe(tmp_path: Path):
    start = time.monotonic()
    done = subprocess.run(
        DEMO,
        env=environment(tmp_path, TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    check_story(done.stdout)
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    assert 6 < time.monotonic() - start < 30
    assert list(tmp_path.iterdir()) == []  # it took its database away


def test_on_a_terminal(tmp_path: Path):
    ours, its = pty.openpty()
    variables = environment(tmp_path, TERM="xterm-256color", COLUMNS="120", TMPDIR=str(tmp_path))
    with subprocess.Popen(DEMO, env=variables, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        said = b""
        try:
            while part := os.read(ours, 65536):
                said += part
        except OSError:  # so Linux tells that the other side is closed
            pass
        finally:
            os.close(ours)
            if process.poll() is None:
                process.wait(SECONDS)
    text = said.decode()
    assert process.returncode == 0
    assert "\x1b[" in text
    assert "behind their key" in text  # the bars that a pipe does not get
    check_story(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text))
    assert list(tmp_path.iterdir()) == []
