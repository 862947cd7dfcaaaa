"""The other process of the latency case: publishes the time for each line that it reads."""

from __future__ import annotations

import sys
import time

from queue_lib import Message, open_queue

if __name__ == "__main__":
    with open_queue(sys.argv[1]) as queue:
        for _ in sys.stdin:
            queue.publish(Message("bench", str(time.time()).encode()))
