"""A PgBouncer in transaction mode: each transaction may have another server connection."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from tests.servers import ServerUnavailableError, _free_port, _make_folder, _unprivileged_user

__all__ = ["PgBouncer"]

_SECONDS = 20.0
# Fewer server connections than clients: everybody meets everybody's, in the middle of the work.
_CONFIG = """
[databases]
* = host=127.0.0.1 port={server} user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
"""


class PgBouncer:
    """The program of the system in front of a server of ours. A context manager."""

    def __init__(self, server: sa.URL) -> None:
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        if program is None:
            raise ServerUnavailableError("there is no program pgbouncer")
        user: dict[str, Any] = _unprivileged_user()  # like the server, it refuses root
        self._folder: Path = _make_folder(user)
        self.port = _free_port()
        config = self._folder / "pgbouncer.ini"
        config.write_text(_CONFIG.format(server=server.port, port=self.port))
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [program, config.name], cwd=self._folder, stdout=log, stderr=log, **user
            )
        self._await()

    def url(self, url: sa.URL) -> sa.URL:
        """Return the way to the same database through here."""
        return url.set(host="127.0.0.1", port=self.port)

    def _await(self) -> None:
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.01)
            else:
                return
        text = (self._folder / "log").read_text(errors="replace")
        self.close()
        raise ServerUnavailableError(f"PgBouncer does not start: {text[-1000:]}")

    def close(self) -> None:
        """End it and remove its files."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
