"""Measure the stores beside their floor, and beside other queues.

`python -m benchmarks [--smoke] [--peers] [--stores sqlite,postgres] [--only TEXT] [--json FILE]`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import sqlalchemy as sa

from benchmarks.cases import SMOKE, Bench, Figure, Size, prepare
from benchmarks.peers import PEERS
from tests.servers import PostgresServer

SHAPES = ("no key", "1,000 keys", "one key, head held", "scheduled")


def cases(bench: Bench) -> Iterator[tuple[str, Callable[[], Figure | list[Figure]]]]:
    """Name every case, cheap ones first."""
    yield "publish one", lambda: bench.publish(1, 1, 1024)
    yield "publish 100", lambda: bench.publish(100, 1, 1024)
    yield "publish 1000", lambda: bench.publish(1000, 1, 1024)
    yield "publish 1000 to 2", lambda: bench.publish(1000, 2, 1024)
    yield "claim and ack", bench.claim_and_ack
    for concurrency in (4, 64, 256):
        yield f"drain {concurrency}", lambda c=concurrency: bench.drain(c)  # type: ignore[misc]
    yield "drain keyed", lambda: bench.drain(64, keys=1000)
    yield "latency same", lambda: bench.latency(other_process=False)
    yield "latency other", lambda: bench.latency(other_process=True)
    yield "idle", bench.idle
    yield "bytes", bench.bytes_per_message
    for shape in SHAPES:
        yield f"backlog {shape}", lambda s=shape: bench.claim_at_backlog(s)  # type: ignore[misc]


@contextmanager
def databases(kind: str) -> Iterator[Callable[[], sa.URL]]:
    """Give a maker of empty, migrated databases that end with the block."""
    with tempfile.TemporaryDirectory(prefix="queue-bench-") as folder:
        if kind == "sqlite":
            numbers = iter(range(1_000_000))
            yield lambda: prepare(sa.make_url(f"sqlite:///{folder}/{next(numbers)}.db"))
            return
        with PostgresServer(durable=True) as server:
            made: list[str] = []

            def fresh() -> sa.URL:
                while made:
                    server.drop_database(made.pop())
                made.append(server.create_database())
                return prepare(sa.make_url(server.url(made[-1])))

            yield fresh


def measure(kind: str, size: Size, only: str, *, peers: bool = False) -> Iterator[Figure]:
    """Run the cases whose names contain `only`, then the peers, on the same server."""
    with databases(kind) as fresh:
        for name, case in cases(Bench(fresh, size)):
            if only in name:
                figures = case()
                yield from figures if isinstance(figures, list) else [figures]
        for peer in PEERS[kind] if peers else ():
            yield from measure_peer(peer, fresh(), smoke=size is SMOKE)


def measure_peer(peer: str, url: sa.URL, *, smoke: bool) -> Iterator[Figure]:
    """Run a peer in a process of its own: some of them bring an event loop, or a runtime."""
    target = url.database if url.get_backend_name() == "sqlite" else _plain(url)
    command = [sys.executable, "-m", "benchmarks.peers", peer, str(target)]
    done = subprocess.run(
        [*command, *(["--smoke"] if smoke else [])],
        capture_output=True, text=True, check=False, timeout=900, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    if done.returncode:
        print(f"{peer}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return
    for name, value in json.loads(done.stdout.splitlines()[-1]).items():
        yield Figure(f"{peer}: {name}", "ms" if "latency" in name else "/s", value)


def _plain(url: sa.URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def table_row(kind: str, figure: Figure) -> str:
    """Render a figure as a row of a Markdown table."""
    floor = "" if figure.floor is None else f"{figure.floor:,.4g}"
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    more = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figure.more.items())
    unit = f" {figure.unit}" if figure.unit else ""
    return f"| {kind} | {figure.name} | {figure.store:,.4g}{unit} | {floor} | {ratio} | {more} |"


def main() -> int:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: does it still run?")
    parser.add_argument("--peers", action="store_true", help="other queues, too: the extra `peers`")
    parser.add_argument("--stores", default="sqlite,postgres")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    figures = []
    print("| store | case | measured | floor | ratio | |\n|---|---|--:|--:|--:|---|")
    for kind in options.stores.split(","):
        size = SMOKE if options.smoke else Size()
        for figure in measure(kind, size, options.only, peers=options.peers):
            figures.append({"kind": kind, **asdict(figure), "ratio": figure.ratio})
            print(table_row(kind, figure), flush=True)
    if options.json:
        machine = {"python": platform.python_version(), "cores": os.cpu_count(), "at": time.time()}
        options.json.write_text(json.dumps({"machine": machine, "figures": figures}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
