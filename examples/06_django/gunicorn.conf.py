"""gunicorn reads this file by itself: it starts and stops the consumers of each worker."""

from __future__ import annotations

import os
from typing import Any

workers = 2
graceful_timeout = 30


def post_worker_init(worker: Any) -> None:
    """Called in each worker once the application is loaded, with --preload too."""
    from shop import consumers

    consumers.start()
    worker.log.info("worker %d consumes", worker.pid)


def worker_exit(server: Any, worker: Any) -> None:
    """Called in each worker before it ends, also after SIGTERM."""
    if worker.pid == os.getpid():  # the master calls it, too, for a worker that vanished
        from shop.queueing import queue

        drained = queue.close(timeout=20)  # less than graceful_timeout: then comes SIGKILL
        worker.log.info("worker %d closed its queue, drained: %s", worker.pid, drained)
