"""Two replicas and a Keeper for tests, and what stands in for ``ON CLUSTER``."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from queue_lib import migrate
from tests.clickhouse_server import _free_ports
from tests.keeper import Keeper
from tests.servers import ServerUnavailableError

__all__ = ["ClickHouseCluster", "Replica"]

_ROOT = Path(__file__).resolve().parent.parent
_ON_CLUSTER = re.compile(r" ON CLUSTER `?main`?")


class Replica:
    """A server, on ports that it keeps."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.tcp_port, self.interserver_port = _free_ports()
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        folder.mkdir()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self, keeper: int, peers: list[int]) -> None:
        """Start the server and wait until it answers."""
        ports = map(str, (self.tcp_port, self.interserver_port, keeper))
        with (self._folder / "log").open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.clickhouse_replica", str(self._folder), self.name]
                + [*ports, ",".join(map(str, peers))],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self.kill()
            text = (self._folder / "log").read_text(errors="replace")[-2000:]
            raise ServerUnavailableError(f"ClickHouse does not start as a replica: {text}")

    def kill(self) -> None:
        """End the server as a crash does: at once, with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def execute(self, statement: str, database: str = "default") -> list[Any]:
        """Run a statement; return its rows."""
        from clickhouse_driver import Client

        with Client("127.0.0.1", self.tcp_port, database) as client:
            rows: list[Any] = client.execute(statement)
            return rows


class ClickHouseCluster:
    """The cluster ``main``: one shard of two replicas. Closed, nothing of it is left running."""

    def __init__(self, folder: Path) -> None:
        if importlib.util.find_spec("chdb") is None:
            raise ServerUnavailableError("the wheel chdb-core is not installed")
        if platform.machine() != "x86_64":
            raise ServerUnavailableError("replicas are known for x86-64 only")
        self._keeper = Keeper()
        self.replicas = [Replica(name, folder / name) for name in ("one", "two")]
        try:
            self.start_all()
        except BaseException:
            self.close()
            raise

    def start_all(self) -> None:
        """Start the replicas that do not run."""
        for replica in self.replicas:
            if not replica.is_running:
                replica.start(self._keeper.port, [each.tcp_port for each in self.replicas])

    def everywhere(self, statement: str) -> None:
        """Run a statement on each replica, one after the other."""
        for replica in self.replicas:
            replica.execute(statement)

    def create_database(self) -> str:
        """Make an empty database; return its name."""
        name = f"test_{uuid.uuid4().hex}"
        self.everywhere(f"CREATE DATABASE {name} ENGINE = Atomic")
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database with all that is in it."""
        self.everywhere(f"DROP DATABASE IF EXISTS {name} SYNC")

    def url(self, database: str, replica: int = 0) -> sa.URL:
        """Return the URL of a database on one of the replicas."""
        port = self.replicas[replica].tcp_port
        return sa.make_url(f"clickhouse+native://default:@127.0.0.1:{port}/{database}").set(
            query={
                "cluster": "main",
                "replicas": "2",
                "replica_path": "{replica}:/queue/{database}/{table}",
            }
        )

    def migrate(self, database: str) -> list[str]:
        """Make the tables; return what was done on the whole cluster."""
        with self.distributed_ddl() as done:
            migrate.upgrade(self.url(database))
        return done

    @contextmanager
    def distributed_ddl(self) -> Iterator[list[str]]:
        """Do what ``ON CLUSTER`` would, which the wheel's server refuses; yield what was done.

        The other replica is first, so that whoever waits for the statement knows of both.
        """
        done: list[str] = []
        lock = threading.Lock()

        def spread(
            connection: sa.Connection, _cursor: Any, statement: str, parameters: Any, *_: Any
        ) -> tuple[str, Any]:
            local, count = _ON_CLUSTER.subn("", statement)
            if count:
                url = connection.engine.url
                for replica in self.replicas:
                    if replica.tcp_port != url.port:
                        with lock:
                            done.append(statement)
                            replica.execute(local, url.database or "default")
            return local, parameters

        sa.event.listen(sa.Engine, "before_cursor_execute", spread, retval=True)
        try:
            yield done
        finally:
            sa.event.remove(sa.Engine, "before_cursor_execute", spread)

    def close(self) -> None:
        """End the servers."""
        for replica in self.replicas:
            with contextlib.suppress(ProcessLookupError):
                replica.kill()
        self._keeper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
