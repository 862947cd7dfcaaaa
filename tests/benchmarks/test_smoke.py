"""A tiny run of every case: times mean nothing here, counts and names do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_every_case_runs_and_counts(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if store == "postgres":
        request.getfixturevalue("postgres_server")  # skips where there are no programs for one
    answer = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--smoke", "--stores", store, "--json", str(answer)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = {figure["name"]: figure for figure in json.loads(answer.read_text())["figures"]}
    assert figures["statements an empty poll"]["store"] == 1
    drain = figures["drain, concurrency 64"]["more"]["statements_per_message"]
    assert drain < 0.5  # batches: one by one it would be two or more
    for case in ("publish 1, ", "publish 1000, ", "claim + ack", "drain", "latency", "bytes"):
        assert any(name.startswith(case) for name in figures), case
    for shape in ("no key", "1,000 keys", "one key, head held", "scheduled"):
        assert sum(f"({shape})" in name for name in figures) == 2, shape
    ratios = [figure["ratio"] for figure in figures.values() if figure["floor"]]
    assert ratios
    assert all(ratio > 0 for ratio in ratios)
