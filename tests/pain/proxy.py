"""A way to a server on which everything can get lost without a word, as behind a dead firewall."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress
from typing import Self

__all__ = ["Proxy"]

_SECONDS = 20.0


class Proxy:
    """Passes bytes to a server and back. A context manager: its end cuts every connection."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._sockets = ExitStack()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._swallowing = threading.Event()  # replaced for the connections to come
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def swallow(self) -> None:
        """From now on the connections that are there lead nowhere; new ones are not affected."""
        self._swallowing.set()
        self._swallowing = threading.Event()

    def _accept(self) -> None:
        with suppress(OSError):  # the door is closed
            while True:
                client, _ = self._door.accept()
                server = socket.create_connection(self._server)
                for each in (client, server):
                    self._sockets.callback(_cut, each)
                for source, target in ((client, server), (server, client)):
                    self._start(self._pass, source, target, self._swallowing)

    def _pass(self, source: socket.socket, target: socket.socket, gone: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not gone.is_set():
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="proxy")  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _cut(self._door)
        self._threads[0].join(_SECONDS)  # it makes the others
        self._sockets.close()
        for thread in self._threads:
            thread.join(_SECONDS)


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for it
    connection.close()
