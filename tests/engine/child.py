"""What the tests run in processes of their own: ``python -m tests.engine.child FUNCTION URL``."""

from __future__ import annotations

import sys
import time

from queue_lib import Message, open_queue
from tests.engine.harness import TOPIC


def publish(url: str) -> None:
    """Publish once the parent says so; print the instant."""
    with open_queue(url) as queue:
        sys.stdin.readline()
        print(time.monotonic(), flush=True)
        queue.publish(Message(TOPIC))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
