"""Other queues, on the server that the stores are measured on. See `benchmarks.peers`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.figures import Figure

__all__ = ["measure"]

_SECONDS = 900


def measure(bench: Bench, peer: str) -> Iterator[Figure]:
    """Run a peer in a process of its own: some bring an event loop, or a runtime."""
    with bench.site() as site:
        url = site.url.set(drivername="postgresql").render_as_string(hide_password=False)
        target = str(site.url.database) if bench.kind == "sqlite" else url
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.peers", peer, target]
            + ["--smoke"] * (bench.size.smoke),
            stdout=subprocess.PIPE, text=True, check=True, timeout=_SECONDS,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
    for name, value in json.loads(done.stdout.splitlines()[-1]).items():
        yield Figure(f"{peer}: {name}", "ms" if "latency" in name else "/s", value)
