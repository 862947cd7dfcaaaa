"""The ClickHouse server of the tests: it comes, goes, crashes, and never outlives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.clickhouse_server import ClickHouseServer

_OWNER = """
import sys
from tests.clickhouse_server import ClickHouseServer
server = ClickHouseServer()
print(server.folder, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_crash_loses_nothing_that_was_stored(clickhouse_own_server: ClickHouseServer):
    server = clickhouse_own_server
    database, ports = server.create_database(), (server.http_port, server.tcp_port)
    server.execute(f"CREATE TABLE {database}.t (x UInt8) ENGINE = MergeTree ORDER BY x")
    server.execute(f"INSERT INTO {database}.t VALUES (7)")
    server.kill()
    with pytest.raises(OSError, match="refused"):
        server.execute("SELECT 1")
    server.start()
    server.restart()
    assert (server.http_port, server.tcp_port) == ports
    assert server.execute(f"SELECT x FROM {database}.t") == "7\n"


def test_a_database_is_empty_and_answers_to_both_drivers(
    clickhouse_url: str, clickhouse_database: str
):
    engine = sa.create_engine(clickhouse_url)
    with engine.connect() as connection:
        query = "SELECT currentDatabase(), count() FROM system.tables WHERE database = "
        found = connection.execute(sa.text(f"{query}'{clickhouse_database}'"))
        assert [tuple(row) for row in found] == [(clickhouse_database, 0)]
    engine.dispose()


@pytest.mark.slow
@pytest.mark.processes
def test_a_killed_owner_takes_its_server_along(clickhouse_server: ClickHouseServer):
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        server = int((folder / "pid").read_text())
    finally:
        owner.kill()
        owner.communicate()
    deadline = time.monotonic() + 20
    while folder.exists():
        assert time.monotonic() < deadline, "the server's files are still there"
        time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(server, signal.SIG_DFL)
