"""A tiny run of every benchmark: times mean nothing here, counts and names do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cases import choose


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("clickhouse_server")  # skips where there is none
def test_every_case_runs_and_counts(tmp_path: Path) -> None:
    answer = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--smoke", "--long", "--stores", "clickhouse"]
        + ["--json", str(answer)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = {figure["name"]: figure for figure in json.loads(answer.read_text())["figures"]}
    expected = {case.name for case in choose("clickhouse", groups=["quick", "long"])}
    assert {figure["case"] for figure in figures.values()} == expected
    more = {name: figure["more"] for name, figure in figures.items()}
    assert more["drain, concurrency 64"]["statements_per_message"] < 0.5
    assert more["drain, processes: 2"]["handled"] == 50
    assert figures["statements an empty poll"]["value"] == 1
    # Now and then the server is asked for the time.
    assert figures["5 idle subscriptions: statements a poll"]["value"] < 3
    assert more["claim of 32 at 800 (1,000 keys)"]["claimed"] == 4 * 32
    assert more["claim of 32 at 800, behind as many finished"]["claimed"] == 4 * 32
    assert more["stats of 1,000 behind 2,500 finished"]["pending"] == 1_000
    assert more["memory, 1,000 pending, concurrency 64"]["handled"] == 400
    assert more["purge"]["rows"] == 50
