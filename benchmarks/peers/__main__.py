"""`python -m benchmarks.peers NAME URL [--smoke]`: one line of JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import logging

from benchmarks.peers import PEERS, Size

SMOKE = Size(publishes=20, drain=2_000, latencies=5)

parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
parser.add_argument("name", choices=[name for names in PEERS.values() for name in names])
parser.add_argument("url")
parser.add_argument("--smoke", action="store_true")
options = parser.parse_args()
logging.disable(logging.ERROR)
peer = importlib.import_module(f"benchmarks.peers.{options.name}")
print(json.dumps(peer.measure(options.url, SMOKE if options.smoke else Size())))
