"""The plot: a valid SVG in which every series has its name."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

if not os.environ.get("CI"):
    pytest.importorskip("matplotlib", reason="the extra bench is not installed")

from benchmarks.plot import draw

SVG = "{http://www.w3.org/2000/svg}"


def figure(kind: str, name: str, value: float, unit: str = "/s") -> dict[str, object]:
    return {"kind": kind, "name": name, "value": value, "unit": unit}


FOUND = [
    figure("sqlite", "publish 1", 3_000),
    figure("sqlite", "drain, concurrency 256", 40_000),
    figure("sqlite", "huey: drain", 3_000),
    figure("postgres", "publish 1,000", 37_000),
    figure("postgres", "pgqueuer: publish 1000", 43_000),
    figure("postgres", "claim of 32 at 10,000 (no key)", 1.3, "ms"),
    figure("postgres", "claim of 32 at 1,000,000 (no key)", 1.2, "ms"),
    figure("clickhouse", "claim of 32 at 10,000 (another group)", 15, "ms"),
]


def texts(file: Path) -> set[str]:
    root = ET.parse(file).getroot()  # noqa: S314 - our own file
    assert root.tag == f"{SVG}svg"
    return {"".join(text.itertext()) for text in root.iter(f"{SVG}text")}


def test_the_series_are_named(tmp_path: Path) -> None:
    draw(FOUND, tmp_path / "plot.svg")
    series = {"queue_lib, sqlite", "huey", "queue_lib, postgres", "pgqueuer"}
    lines = {"postgres, no key", "clickhouse, another group"}
    assert series | lines <= texts(tmp_path / "plot.svg")
    assert "queue_lib, clickhouse" not in texts(tmp_path / "plot.svg")  # there is no bar of it


def test_the_same_figures_are_the_same_file(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw(FOUND, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_there_may_be_nothing_to_draw(tmp_path: Path) -> None:
    draw([], tmp_path / "plot.svg")
    assert "Throughput" in texts(tmp_path / "plot.svg")
