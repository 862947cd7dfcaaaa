"""Measure the stores beside their floor, and beside other queues; draw what was measured.

`make bench` runs the quick cases; `make bench ARGS='--long --json FILE'` all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.cases import CASES, choose
from benchmarks.databases import KINDS, host
from benchmarks.figures import size_for

_HEAD = "| store | case | measured | against | ratio | |\n|---|---|--:|--:|--:|---|"


def main() -> int:
    """Measure, print a table, write the JSON, draw the plot."""
    options = _options()
    if options.list:
        for case in CASES:
            print(f"{case.name:32}{case.group:7}{', '.join(case.kinds)}")
        return 0
    figures: list[dict[str, Any]] = []
    failed: list[str] = []
    for file in options.add:
        figures += json.loads(file.read_text())["figures"]
    if options.stores:
        print(_HEAD)
    try:
        for kind in options.stores:
            _measure(kind, options, figures, failed)
    finally:  # an hour of measuring is not lost to a Ctrl-C
        if options.json:
            machine = {"python": platform.python_version(), "cores": os.cpu_count()}
            found = {"at": time.time(), "machine": machine, "figures": figures, "failed": failed}
            options.json.write_text(json.dumps(found, indent=1))
    if options.plot:
        from benchmarks.plot import draw

        draw(figures, options.plot)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _measure(
    kind: str, options: argparse.Namespace, figures: list[dict[str, Any]], failed: list[str]
) -> None:
    """Run the cases of one kind of store; one that fails does not keep the others from running."""
    size = size_for(kind, smoke=options.smoke, minutes=options.minutes)
    with host(kind) as made:
        for case in choose(kind, options.only, options.groups):
            try:
                for figure in case.measure(Bench(kind, made, size)):
                    print(figure.row(kind), flush=True)
                    known = {"kind": kind, "case": case.name, "ratio": figure.ratio}
                    figures.append({**known, **asdict(figure)})
            except Exception:  # noqa: BLE001 - it is reported
                traceback.print_exc()
                failed.append(f"{kind}: {case.name}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add(
        "--stores",
        type=_kinds,
        default="sqlite,postgres",
        help="which to measure; empty: none, for --add",
    )
    add("--only", default="", help="the cases whose name contains this, of whatever group")
    add("--long", action="append_const", const="long", dest="groups", help="the long ones, too")
    add("--peers", action="append_const", const="peers", dest="groups", help="other queues, too")
    add("--minutes", type=float, help="of steady traffic, and of a transaction held open")
    add("--smoke", action="store_true", help="tiny sizes: does it still run?")
    add("--json", type=Path, help="write the figures to this file")
    add("--add", type=Path, nargs="+", default=[], help="figures of earlier runs, for the plot")
    add("--plot", type=Path, help="draw throughput and claim time to this SVG file")
    add("--list", action="store_true", help="the cases, their groups and stores")
    parser.set_defaults(groups=["quick"])
    return parser.parse_args()


def _kinds(text: str) -> list[str]:
    kinds = text.split(",") if text else []
    if unknown := set(kinds) - set(KINDS):
        raise argparse.ArgumentTypeError(f"{unknown}: choose from {', '.join(KINDS)}")
    return kinds


if __name__ == "__main__":
    sys.exit(main())
