"""Draw what was measured: throughput beside other queues, and claim time against backlog."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.peers import DRAIN, PEERS, PUBLISH_1, PUBLISH_1000

__all__ = ["draw"]

_BARS = {
    # label: our figure, the peers'
    "publish 1": ("publish 1", PUBLISH_1),
    "publish 1,000": ("publish 1,000", PUBLISH_1000),
    "drain, best": ("drain, concurrency 256", DRAIN),
}
_COLOURS = {
    "sqlite": "tab:blue",
    "postgres": "tab:red",
    "clickhouse": "tab:olive",
    "clickhouse-http": "tab:green",
}
_LINES = ("-", "--", ":", "-.", (0, (1, 4)))
_CLAIM = re.compile(r"claim of 32 at ([\d,]+) \((.+)\)")

_BESIDE: dict[str, Any] = {"fontsize": "small", "loc": "upper left", "bbox_to_anchor": (1, 1)}

Found = Sequence[dict[str, Any]]


def draw(found: Found, file: Path) -> None:
    """Draw figures, as they are in the JSON, to an SVG file."""
    # Text stays text, to be found and selected; nothing in the file differs from run to run.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "queue_lib"}):
        figure = Figure(figsize=(13, 5), layout="constrained")
        bars, lines = figure.subplots(1, 2)
        _draw_throughput(bars, found)
        _draw_claims(lines, found)
        figure.savefig(file, format="svg", metadata={"Date": None})


def _draw_throughput(axes: Axes, found: Found) -> None:
    """Bars of each store, and in its colour, paler, of its peers."""
    rates = {(it["kind"], it["name"]): it["value"] for it in found}
    series: dict[str, tuple[str, float, list[float]]] = {}
    for kind, colour in _COLOURS.items():
        ours = [rates.get((kind, name), 0.0) for name, _ in _BARS.values()]
        series[f"queue_lib, {kind}"] = colour, 1.0, ours
        for nth, peer in enumerate(PEERS.get(kind, ())):
            theirs = [rates.get((kind, f"{peer}: {name}"), 0.0) for _, name in _BARS.values()]
            series[peer] = colour, 0.5 - 0.1 * nth, theirs
    series = {name: one for name, one in series.items() if any(one[2])}
    width = 0.8 / max(len(series), 1)
    for nth, (name, (colour, alpha, values)) in enumerate(series.items()):
        places = [place + nth * width for place in range(len(_BARS))]
        axes.bar(places, values, width, color=colour, alpha=alpha, label=name)
    middle = (len(series) - 1) * width / 2
    axes.set_xticks([place + middle for place in range(len(_BARS))], list(_BARS))
    axes.set(title="Throughput", ylabel="messages a second", yscale="log")
    if series:
        axes.legend(**_BESIDE)


def _draw_claims(axes: Axes, found: Found) -> None:
    """Draw a line for each store and shape of the backlog: flat is good."""
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for it in found:
        if match := _CLAIM.fullmatch(it["name"]):
            backlog, shape = match.groups()
            point = int(backlog.replace(",", "")), it["value"]
            lines.setdefault((it["kind"], shape), []).append(point)
    shapes = list(dict.fromkeys(shape for _, shape in lines))
    for (kind, shape), points in lines.items():
        axes.plot(
            *zip(*sorted(points), strict=True), color=_COLOURS[kind],
            linestyle=_LINES[shapes.index(shape) % len(_LINES)], marker=".",
            label=f"{kind}, {shape}",
        )  # fmt: skip
    axes.set(title="A claim of 32", xlabel="backlog", ylabel="milliseconds")
    axes.set(xscale="log", yscale="log")
    if lines:
        axes.legend(**_BESIDE)
