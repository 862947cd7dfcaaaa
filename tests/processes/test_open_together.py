"""Ten processes that open one new file at once, as the workers of a web server do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from queue_lib import Message, open_queue
from tests.engine.harness import Inbox

pytestmark = [pytest.mark.slow, pytest.mark.processes]

PROCESSES = 10
MESSAGES = 20
SECONDS = 60.0

# Everything that takes time is loaded before the parent gives the word.
CHILD = """
import sys
import queue_lib.migrate, queue_lib.stores.sql.sqlite
from queue_lib import Message, open_queue
url, name, count = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
with open_queue(url, migrate=True) as queue:
    for n in range(int(count)):
        queue.publish(Message("orders", str(n).encode(), key=name, id=f"{name}-{n}"))
"""


@pytest.mark.timeout(180)
def test_processes_open_and_migrate_one_new_file_and_publish_at_once(sqlite_url: str):
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", CHILD, sqlite_url, str(number), str(MESSAGES)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        said = [child.communicate(timeout=SECONDS)[1] for child in children]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    assert [child.returncode for child in children] == [0] * PROCESSES, "\n".join(said)
    assert not any(said)  # neither an error nor a warning
    inbox = Inbox()
    with open_queue(sqlite_url) as queue:
        queue.subscribe("orders", "late", inbox, start_from="earliest", concurrency=1)
        inbox.wait(PROCESSES * MESSAGES)
        queue.publish(Message("orders"))  # behind all of them
        deliveries = inbox.wait(PROCESSES * MESSAGES + 1)
    of_key: dict[str, list[int]] = {}
    for delivery in deliveries[:-1]:
        of_key.setdefault(delivery.key, []).append(int(delivery.payload))
    assert of_key == {str(number): list(range(MESSAGES)) for number in range(PROCESSES)}
