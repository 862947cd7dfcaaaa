"""The test servers themselves: they come, go, crash, and never outlive their owner."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from tests.servers import PostgresServer

_OWNER = """
import sys, time
from tests.servers import PostgresServer
server = PostgresServer()
print(server.folder, server.url(), flush=True)
sys.stdin.read()
"""


def _connect(url: str) -> psycopg.Connection:
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True, connect_timeout=5)


@pytest.mark.slow
def test_a_crash_loses_nothing_that_was_committed(postgres_own_server: PostgresServer):
    server = postgres_own_server
    url = server.url()
    with _connect(url) as connection:
        connection.execute("CREATE TABLE t AS SELECT 7 AS x")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    server.start()
    assert server.url() == url
    server.restart()
    with _connect(url) as connection:
        assert connection.execute("SELECT x FROM t").fetchall() == [(7,)]


def test_a_database_is_a_copy_of_its_template(postgres_own_server: PostgresServer):
    server = postgres_own_server
    template = server.create_database()
    with _connect(server.url(template)) as connection:
        connection.execute("CREATE TABLE t (x int)")
    copy = server.create_database(template)
    with _connect(server.url(copy)) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
        server.drop_database(copy)  # although somebody is connected
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        _connect(server.url(copy))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("postgres_own_server")  # skips where there can be none
def test_a_killed_owner_takes_its_server_along():
    root = Path(__file__).parents[1]
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout is not None
        folder, url = owner.stdout.readline().split()
        _connect(url).close()
    finally:
        owner.kill()
        owner.communicate()
    deadline = time.monotonic() + 20
    while Path(folder).exists():
        assert time.monotonic() < deadline, "the server's files are still there"
        time.sleep(0.05)
    with pytest.raises(psycopg.OperationalError):
        _connect(url)
