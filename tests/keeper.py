"""What two ClickHouse servers need of a ZooKeeper: one in memory, in a thread of the tests.

One request at a time, so it is as consistent as any can be. No ACLs, no quotas, no history: a
session that is gone stays gone, as ClickHouse never resumes one.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

__all__ = ["Keeper"]

_CREATE, _DELETE, _EXISTS, _GET, _SET, _CHILDREN, _SYNC, _LIST, _CHECK, _MULTI = (
    1, 2, 3, 4, 5, 8, 9, 12, 13, 14,
)  # fmt: skip
_PING, _CLOSE = 11, -11

_INCONSISTENT, _UNIMPLEMENTED = -2, -6
_NO_NODE, _BAD_VERSION, _EPHEMERAL_PARENT, _NODE_EXISTS, _NOT_EMPTY = -101, -103, -108, -110, -111

_CREATED, _DELETED, _CHANGED, _CHILD = 1, 2, 3, 4


class _Refused(Exception):  # noqa: N818 - an answer of the protocol
    def __init__(self, code: int) -> None:
        self.code = code
        self.position = 0  # in a transaction


@dataclass
class _Node:
    data: bytes
    owner: int  # the session of an ephemeral node, else 0
    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    version: int = 0
    created: int = 0  # children, ever: the next sequence number
    children: set[str] = field(default_factory=set)

    def stat(self) -> bytes:
        count = len(self.children)
        return struct.pack(
            ">qqqqiiiqiiq", self.czxid, self.mzxid, self.ctime, self.mtime, self.version,
            2 * self.created - count, 0, self.owner, len(self.data), count, self.pzxid,
        )  # fmt: skip


_Change = tuple[int, tuple[Any, ...]]
"""An operation and its arguments."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, form: str) -> Any:
        (value,) = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(f">{form}")
        return value

    def buffer(self) -> bytes:
        length = max(self.take("i"), 0)
        self._at += length
        return self._data[self._at - length : self._at]

    def text(self) -> str:
        return self.buffer().decode()

    def change(self, op: int) -> _Change:
        path = self.text()
        if op == _CREATE:
            data = self.buffer()
            for _ in range(self.take("i")):  # who may do what
                self.take("i"), self.buffer(), self.buffer()
            return op, (path, data, self.take("i"))
        if op == _SET:
            return op, (path, self.buffer(), self.take("i"))
        return op, (path, self.take("i"))

    def changes(self) -> Iterator[_Change]:
        while True:
            op, done, _ = self.take("i"), self.take("?"), self.take("i")
            if done:
                return
            yield self.change(op)


def _buffer(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class _Tree:
    """The nodes and who watches them. Not thread-safe."""

    def __init__(self) -> None:
        self.zxid = 0
        self.nodes = {"/": _Node(b"", 0, 0, 0, 0, 0, 0)}
        self.watches: dict[tuple[str, bool], set[_Session]] = defaultdict(set)  # path, of children
        self._undo: list[Callable[[], object]] = []
        self._events: list[tuple[str, int]] = []

    def change(self, session: int, changes: list[_Change]) -> list[bytes]:
        """Do all of them or none; tell those who watch."""
        self._undo, self._events = [], []
        self.zxid += 1
        answers: list[bytes] = []
        try:
            for op, arguments in changes:
                answers.append(_CHANGES[op](self, session, *arguments))
        except _Refused as refused:
            for undo in reversed(self._undo):
                undo()
            refused.position = len(answers)
            raise
        for path, event in self._events:
            watchers = self.watches.pop((path, event == _CHILD), set())
            if event == _DELETED:
                watchers |= self.watches.pop((path, True), set())
            for watcher in watchers:
                watcher.send(struct.pack(">iqiii", -1, -1, 0, event, 3) + _buffer(path.encode()))
        return answers

    def leave(self, session: _Session) -> None:
        """End a session."""
        for watchers in self.watches.values():
            watchers.discard(session)
        mine = [path for path, node in self.nodes.items() if node.owner == session.id]
        self.change(session.id, [(_DELETE, (path, -1)) for path in mine])

    def node(self, path: str) -> _Node:
        if (node := self.nodes.get(path)) is None:
            raise _Refused(_NO_NODE)
        return node

    def create(self, session: int, path: str, data: bytes, flags: int) -> bytes:
        parent = self.node(_parent(path))
        if parent.owner:
            raise _Refused(_EPHEMERAL_PARENT)
        if flags & 2:
            path += f"{parent.created:010}"
        if path in self.nodes:
            raise _Refused(_NODE_EXISTS)
        name, now, before = path.rpartition("/")[2], int(time.time() * 1000), parent.pzxid
        owner = session if flags & 1 else 0
        self.nodes[path] = _Node(data, owner, self.zxid, self.zxid, self.zxid, now, now)
        parent.children.add(name)
        parent.created += 1
        parent.pzxid = self.zxid

        def undo() -> None:
            del self.nodes[path]
            parent.children.remove(name)
            parent.created -= 1
            parent.pzxid = before

        self._undo.append(undo)
        self._events += [(path, _CREATED), (_parent(path), _CHILD)]
        return _buffer(path.encode())

    def delete(self, _: int, path: str, version: int) -> bytes:
        if self._at_version(path, version).children:
            raise _Refused(_NOT_EMPTY)
        node, parent = self.nodes.pop(path), self.nodes[_parent(path)]
        name = path.rpartition("/")[2]
        before, parent.pzxid = parent.pzxid, self.zxid
        parent.children.remove(name)

        def undo() -> None:
            self.nodes[path] = node
            parent.children.add(name)
            parent.pzxid = before

        self._undo.append(undo)
        self._events += [(path, _DELETED), (_parent(path), _CHILD)]
        return b""

    def set(self, _: int, path: str, data: bytes, version: int) -> bytes:
        node = self._at_version(path, version)
        before = node.data, node.version, node.mzxid, node.mtime

        def undo() -> None:
            node.data, node.version, node.mzxid, node.mtime = before

        self._undo.append(undo)
        node.data, node.version = data, node.version + 1
        node.mzxid, node.mtime = self.zxid, int(time.time() * 1000)
        self._events.append((path, _CHANGED))
        return node.stat()

    def check(self, _: int, path: str, version: int) -> bytes:
        self._at_version(path, version)
        return b""

    def _at_version(self, path: str, version: int) -> _Node:
        node = self.node(path)
        if version not in (-1, node.version):
            raise _Refused(_BAD_VERSION)
        return node

    def look(self, session: _Session, op: int, reader: _Reader) -> bytes:
        """Answer a question, and remember who wants to hear of changes."""
        path = reader.text()
        if op == _SYNC:
            return _buffer(path.encode())
        is_list = op in (_CHILDREN, _LIST)
        if reader.take("?") and (op == _EXISTS or path in self.nodes):
            self.watches[path, is_list].add(session)
        node = self.node(path)
        if op == _EXISTS:
            return node.stat()
        if op == _GET:
            return _buffer(node.data) + node.stat()
        names = b"".join(_buffer(name.encode()) for name in node.children)
        return struct.pack(">i", len(node.children)) + names + (node.stat() if op == _LIST else b"")


_CHANGES: dict[int, Callable[..., bytes]] = {
    _CREATE: _Tree.create, _DELETE: _Tree.delete, _SET: _Tree.set, _CHECK: _Tree.check,
}  # fmt: skip


class _Session(socketserver.BaseRequestHandler):
    """One connection of a ClickHouse server."""

    server: _Server

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keeper = self.server
        hello = _Reader(self._receive())
        hello.take("i"), hello.take("q")
        timeout = hello.take("i")
        with keeper.lock:
            keeper.sessions += 1
            self.id = keeper.sessions
            self.send(struct.pack(">iiq", 0, timeout, self.id) + _buffer(bytes(16)))
        self.request.settimeout(timeout / 1000)
        try:
            while self._answer(_Reader(self._receive())):
                pass
        except (OSError, EOFError):
            # It may have crashed: nobody can tell before its time is over.
            keeper.closing.wait(timeout / 1000)
        with keeper.lock:
            keeper.tree.leave(self)

    def send(self, content: bytes) -> None:
        with contextlib.suppress(OSError):
            self.request.sendall(_buffer(content))

    def _receive(self) -> bytes:
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            if not (more := self.request.recv(count - len(data))):
                raise EOFError
            data += more
        return bytes(data)

    def _answer(self, reader: _Reader) -> bool:
        xid, op = reader.take("i"), reader.take("i")
        with self.server.lock:
            tree, code, body = self.server.tree, 0, b""
            try:
                if op == _MULTI:
                    body = self._multi(tree, list(reader.changes()))
                elif op in _CHANGES:
                    (body,) = tree.change(self.id, [reader.change(op)])
                elif op in (_EXISTS, _GET, _CHILDREN, _LIST, _SYNC):
                    body = tree.look(self, op, reader)
                elif op not in (_PING, _CLOSE):
                    code = _UNIMPLEMENTED
            except _Refused as refused:
                code = refused.code
            self.send(struct.pack(">iqi", xid, tree.zxid, code) + body)
        return bool(op != _CLOSE)

    def _multi(self, tree: _Tree, changes: list[_Change]) -> bytes:
        """Refused, it is answered with a code for each: one says why."""
        try:
            answers = tree.change(self.id, changes)
        except _Refused as refused:
            codes = [0] * refused.position + [refused.code]
            codes += [_INCONSISTENT] * (len(changes) - len(codes))
            parts = [struct.pack(">i?ii", -1, False, code, code) for code in codes]
        else:
            parts = [
                struct.pack(">i?i", op, False, 0) + answer
                for (op, _), answer in zip(changes, answers, strict=True)
            ]
        return b"".join([*parts, struct.pack(">i?i", -1, True, -1)])


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.lock = threading.Lock()
        self.tree = _Tree()  # guarded by lock
        self.sessions = 0  # guarded by lock
        self.closing = threading.Event()


class Keeper:
    """A Keeper on a loopback port, until it is closed."""

    def __init__(self) -> None:
        self._server = _Server()
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
