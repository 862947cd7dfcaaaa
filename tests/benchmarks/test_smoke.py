"""A tiny run of every case: times mean nothing here, counts and names do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from benchmarks.bench import CLICKHOUSE, SQL
from benchmarks.cases import CASES, choose
from benchmarks.cases.backlog import SHAPES
from benchmarks.databases import KINDS

SIZES = {
    "sqlite": {"file", "WAL"},
    "postgres": {"messages", "messages' indexes", "deliveries", "deliveries' indexes"},
}


def test_a_case_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert set(SQL + CLICKHOUSE) == set(KINDS)
    assert all(case.kinds and set(case.kinds) <= set(KINDS) for case in CASES)
    assert {case.group for case in CASES} == {"quick", "long", "peers"}


def test_cases_are_chosen_by_group_or_by_name() -> None:
    assert {case.group for case in choose("sqlite")} == {"quick"}
    assert {case.group for case in choose("sqlite", groups=["quick", "long"])} == {"quick", "long"}
    assert [case.name for case in choose("sqlite", "memory")] == ["memory"]
    assert choose("sqlite", "notify") == []


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_every_case_runs_and_counts(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if store == "postgres":
        request.getfixturevalue("postgres_server")  # skips where there are no programs for one
    answer = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--smoke", "--long", "--stores", store]
        + ["--json", str(answer)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(answer.read_text())
    assert found["failed"] == []
    expected = {case.name for case in choose(store, groups=["quick", "long"])}
    assert {figure["case"] for figure in found["figures"]} == expected
    assert all(figure["ratio"] > 0 for figure in found["figures"] if figure["reference"])
    check_counts(store, {figure["name"]: figure for figure in found["figures"]})


def check_counts(store: str, figures: dict[str, dict[str, Any]]) -> None:
    """What does not depend on the machine."""

    def more(name: str) -> dict[str, Any]:
        counted: dict[str, Any] = figures[name]["more"]
        return counted

    # Batches: one by one it would be two statements a message, or more.
    assert more("drain, concurrency 64")["statements_per_message"] < 0.5
    assert more("claim + ack of 32")["left"] == 0
    assert [more(f"drain, processes: {count}")["handled"] for count in (1, 2)] == [200, 200]
    assert figures["statements an empty poll"]["value"] == 1
    for wake in ("", ", no wake-ups"):
        # In so short a time each polls once more than on average.
        assert 0 < figures[f"5 idle subscriptions{wake}: statements a poll"]["value"] < 2
    # A publish wakes each of the six, and so may the acknowledgement; who had it looks once more.
    assert 1 <= figures["claims a message, 6 consumers, 10 messages/s"]["value"] <= 18
    for shape in SHAPES:
        for backlog in (400, 800):
            expected = 0 if shape == "one key, head held" else 4 * 32
            assert more(f"claim of 32 at {backlog} ({shape})")["claimed"] == expected
    assert more("stats of 1,000 behind 2,500 finished")["pending"] == 1_000
    assert more("memory, 1,000 pending, concurrency 64")["handled"] == 400
    assert more("purge")["rows"] == 2_500
    assert {name.split(" after ")[0] for name in figures if "0.03 min at" in name} == SIZES[store]
    if store == "postgres":
        assert more("claim of 32 behind 1,000 dead rows")["claimed"] == 4 * 32
        told = more("publish 1, 4 publishers that notify")["notifications_per_message"]
        assert 0 < told <= 1


@pytest.mark.slow
def test_a_plot_is_drawn_of_what_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra bench is not installed")
    plot = tmp_path / "plot.svg"
    command = [sys.executable, "-m", "benchmarks", "--smoke", "--stores", "sqlite"]
    subprocess.run(
        [*command, "--only", "no key", "--plot", str(plot)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=True,
    )
    texts = {"".join(it.itertext()) for it in ET.parse(plot).iter() if it.tag.endswith("}text")}  # noqa: S314
    assert "sqlite, no key" in texts
