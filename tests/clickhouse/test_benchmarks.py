"""A tiny run of every benchmark: do they still run?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.usefixtures("clickhouse_server")  # skips where there is none
def test_every_case_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.clickhouse", "--smoke", "--drivers", "native"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for case in ("publish 1,000", "drain", "publish one by one", "parts", "claim of 32"):
        assert f"| native | {case}" in done.stdout
