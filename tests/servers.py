"""PostgreSQL for tests and benchmarks: one that is given, or a throw-away one of our own."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import psycopg
import sqlalchemy as sa

__all__ = ["Postgres", "PostgresServer", "ServerUnavailableError"]

_START_SECONDS = 60.0
_STOP_SECONDS = 30.0

# Waits for the end of the owner, whose end of the pipe closes even after a SIGKILL; then stops the
# server the hard way and removes its files. After an orderly close there is nothing left to do.
_WATCHDOG = """
cat > /dev/null
if pid=$(head -n 1 "$1/data/postmaster.pid" 2> /dev/null) && kill -QUIT "$pid"; then
    while kill -0 "$pid"; do sleep 0.1; done
fi
rm -rf "$1"
"""


class ServerUnavailableError(Exception):
    """No server can be had here; the message says why."""


class Postgres:
    """A PostgreSQL server on which databases can be made and dropped."""

    def __init__(self, url: str) -> None:
        self._url = sa.make_url(url)

    def url(self, database: str | None = None) -> str:
        """Return the URL of a database on this server, by default of the one to connect to."""
        url = self._url if database is None else self._url.set(database=database)
        return url.render_as_string(hide_password=False)

    def create_database(self, template: str | None = None) -> str:
        """Make a database, a copy of `template` if one is named; return its name."""
        name = f"test_{uuid.uuid4().hex}"
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{template or "template0"}"')
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, and the connections that a test left open."""
        self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _execute(self, statement: str) -> None:
        url = self._url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement.encode())


class PostgresServer(Postgres):
    """A server of our own: on a loopback port, with its files in a temporary folder.

    It goes away with the process that made it, however that ends. As root it runs as another
    user, since PostgreSQL refuses root. `durable`: wait for the disk at each commit, as
    benchmarks must.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self._durable = durable
        self._process: subprocess.Popen[bytes] | None = None
        self._user = _unprivileged_user()
        self._folder = _make_folder(self._user)
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", self._folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the tests
        )
        try:
            self._programs = self._find_programs()
            self._run("initdb", "-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8",
                      "--no-locale", "--no-sync")  # fmt: skip
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the server and wait until it takes connections; a restart keeps the port."""
        deadline = time.monotonic() + _START_SECONDS
        port = self._url.port if hasattr(self, "_url") else None
        while time.monotonic() < deadline:
            candidate = port or _free_port()  # which somebody else may take before the server does
            if self._start(candidate, deadline):
                super().__init__(f"postgresql+psycopg://postgres@127.0.0.1:{candidate}/postgres")
                return
            time.sleep(0.05)  # after `kill`, until the last old backend has noticed
        raise ServerUnavailableError(f"PostgreSQL does not start: {self._log()}")

    def stop(self) -> None:
        """Shut down in good order: every connection is cut, nothing is lost."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill the server as a crash would; `start` then recovers from its log."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop in good order and start again on the same port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server and remove its files. Idempotent."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._watchdog.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, port: int, deadline: float) -> bool:
        # No Unix socket: its path may be too long. Everything else is as PostgreSQL ships it.
        options = [f"-p{port}", "-hlocalhost", "-k", "", "-c", f"fsync={'on' if self._durable else 'off'}"]
        with Path(self._folder, "log").open("ab") as log:
            process = subprocess.Popen(
                [f"{self._programs}/postgres", "-D", "data", *options],
                stdout=log, stderr=log, **self._surroundings(), start_new_session=True,
            )  # fmt: skip
        self._process = process
        while process.poll() is None and time.monotonic() < deadline:
            if self._is_ready(process.pid):
                return True
            time.sleep(0.01)
        self.kill()
        return False
