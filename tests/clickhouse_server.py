"""A real ClickHouse server for tests, and the fixtures that hand it out."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.servers import ServerUnavailableError

__all__ = [
    "ClickHouseServer",
    "clickhouse_database",
    "clickhouse_own_server",
    "clickhouse_server",
    "clickhouse_url",
]

_PROGRAM = Path(__file__).with_name("clickhouse_process.py")
_SECONDS = 30.0
_TRIES = 3

# After an orderly close there is nothing left to do; after a SIGKILL of the owner the server has
# seen the end of its own input, and only its files are left.
_SWEEPER = 'cat > /dev/null; while kill -0 $(cat "$1/pid"); do sleep 0.1; done; rm -rf "$1"'


class ClickHouseServer:
    """A running server on two loopback ports, with its files in a temporary folder.

    It goes away with the process that made it, however that ends. `keeper`: with a Keeper in
    memory, which forgets everything when the server ends, and so with `KeeperMap` tables.
    """

    def __init__(self, *, keeper: bool = False) -> None:
        if importlib.util.find_spec("chdb") is None:
            raise ServerUnavailableError("the wheel chdb-core is not installed")
        self.http_port = self.tcp_port = 0
        self._keeper = ["keeper"] if keeper else []
        self._process: subprocess.Popen[str] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="queue-lib-clickhouse-"))
        self._sweeper = subprocess.Popen(
            ["/bin/sh", "-c", _SWEEPER, "sweeper", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the tests
        )
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def url(self, database: str = "default", driver: str = "native") -> str:
        """Return the URL of a database, for the driver ``native`` or ``http``."""
        port = self.http_port if driver == "http" else self.tcp_port
        return f"clickhouse+{driver}://default:@127.0.0.1:{port}/{database}"

    def create_database(self) -> str:
        """Make an empty database; return its name."""
        name = f"test_{uuid.uuid4().hex}"
        self.execute(f"CREATE DATABASE {name} ENGINE = Atomic")
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database with all that is in it."""
        self.execute(f"DROP DATABASE IF EXISTS {name} SYNC")

    def execute(self, statement: str) -> str:
        """Run a statement without a driver; return what it printed, tab-separated."""
        address = f"http://127.0.0.1:{self.http_port}/"
        try:
            with urllib.request.urlopen(address, statement.encode(), timeout=_SECONDS) as answer:
                return str(answer.read(), "utf-8")
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode(errors="replace")) from error

    def start(self) -> None:
        """Start the server and wait until it answers; a restart keeps the ports."""
        log = self.folder / "log"
        for _ in range(_TRIES):  # a free port may be somebody else's when the server asks for it
            http, tcp = (self.http_port, self.tcp_port) if self.tcp_port else _free_ports()
            with log.open("ab") as errors:
                process = subprocess.Popen(
                    [sys.executable, _PROGRAM, self.folder, str(http), str(tcp), *self._keeper],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    start_new_session=True,
                )
            (self.folder / "pid").write_text(str(process.pid))
            self._process = process
            assert process.stdout is not None
            if process.stdout.readline() == "ready\n":
                self.http_port, self.tcp_port = http, tcp
                return
            self.kill()
        text = log.read_text(errors="replace")[-2000:]
        raise ServerUnavailableError(f"ClickHouse does not start: {text}")

    def stop(self) -> None:
        """Shut down in good order."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.communicate(timeout=_SECONDS)  # ends its input
            self.kill()

    def kill(self) -> None:
        """End the server as a crash does: at once, with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def restart(self) -> None:
        """Stop in good order and start again, on the same ports."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server and remove its files. Idempotent."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._sweeper.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def _new_server() -> ClickHouseServer:
    missing = [name for name in ("clickhouse_sqlalchemy", "chdb") if not _is_installed(name)]
    try:
        if missing:
            raise ServerUnavailableError(f"not installed: {', '.join(missing)}")
        return ClickHouseServer(keeper=True)
    except ServerUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(f"no ClickHouse: {error}")
        pytest.skip(f"no ClickHouse: {error}")


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@pytest.fixture(scope="session")
def clickhouse_server() -> Iterator[ClickHouseServer]:
    """One server, with a Keeper, for the session; under xdist one for each worker."""
    with _new_server() as server:
        yield server


@pytest.fixture
def clickhouse_own_server() -> Iterator[ClickHouseServer]:
    """A server for this test alone: to be stopped, killed and started again."""
    with _new_server() as server:
        yield server


@pytest.fixture
def clickhouse_database(clickhouse_server: ClickHouseServer) -> Iterator[str]:
    """The name of a new, empty database."""
    name = clickhouse_server.create_database()
    yield name
    clickhouse_server.drop_database(name)


@pytest.fixture(params=["native", "http"])
def clickhouse_url(
    request: pytest.FixtureRequest, clickhouse_server: ClickHouseServer, clickhouse_database: str
) -> str:
    """The URL of a new, empty database: once for each driver."""
    driver: str = request.param
    return clickhouse_server.url(clickhouse_database, driver)
