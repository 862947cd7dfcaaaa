"""A ClickHouse server in the foreground that is one of several replicas.

    python -m tests.clickhouse_replica FOLDER NAME TCP_PORT INTERSERVER_PORT KEEPER_PORT TCP_PORTS

The wheel's server (see `tests.clickhouse_process`) has all that replication takes, but nobody tells
it what a server is told when it starts: where others can fetch parts from it, with what name and
password, and that one of its ports is there for that. So its memory is told, in four places of the
one release that these are known of, and only if what is found there is what is expected. The port
for HTTP becomes the one for other replicas; queries come over the native protocol.

Like `clickhouse_process` it says ``ready`` and stops at the end of its input, but as in a crash.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.clickhouse_process import _CONFIG, _USERS, _load, _serve

# The wheel's server has no identity of its own, by which Keeper would know that an older session is
# dead. So each replica gives its Keeper another name, which is part of what it looks for.
_REPLICA = """
    <auxiliary_zookeepers>
        <{name}>
            <node><host>127.0.0.1</host><port>{keeper}</port></node>
            <session_timeout_ms>2000</session_timeout_ms>
        </{name}>
    </auxiliary_zookeepers>
    <macros><shard>1</shard><replica>{name}</replica></macros>
    <remote_servers>
        <main><shard><internal_replication>true</internal_replication>{replicas}</shard></main>
    </remote_servers>
    <background_pool_size>4</background_pool_size>
"""
_PEER = "<replica><host>127.0.0.1</host><port>{port}</port></replica>"

# Addresses in chdb-core 26.9.0 for x86-64, and the code that is there.
_CREDENTIALS = 0x14721740, "41574156534c8b3f"  # Context::getInterserverCredentials
_ADDRESS = 0x147217C0, "4156534883ec484c8b36"  # Context::getInterserverIOAddress
_SCHEME = 0x147218C0, "488b0680b887010000"  # Context::getInterserverScheme
_HANDLER = 0x190973C0, "0f84eb020000"  # createHandlerFactory: a jump if it is to be for HTTP,
_HANDLER_JUMP = "0f8480000000"  # and the one that goes to where it is made for replicas


class _Memory:
    """The code of the extension in this process."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        for line in Path("/proc/self/maps").read_text().splitlines():
            if line.endswith("_chdb.abi3.so") and line.split()[2] == "00000000":
                self._base = int(line.partition("-")[0], 16)

    def write(self, place: tuple[int, str], code: bytes) -> None:
        address, expected = self._base + place[0], bytes.fromhex(place[1])
        found = ctypes.string_at(address, len(expected))
        if found != expected:
            sys.exit(f"another release of chdb-core: {found.hex()} at {place[0]:#x}")
        page = address & -4096
        size = ctypes.c_size_t(address + len(code) - page)
        for protection in (7, 5):  # read and execute, for a moment with write
            if self._libc.mprotect(ctypes.c_void_p(page), size, protection):
                sys.exit("the code of the extension cannot be written")
            if protection == 7:
                ctypes.memmove(address, code, len(code))


def _returns(text: bytes, more: bytes = b"") -> bytes:
    """Return the code of a function that returns a short string, as libc++ has it."""
    words = struct.unpack("<3Q", text.ljust(23, b"\0") + bytes([len(text)]))
    code = b"\x48\x89\xf8"  # mov rax, rdi
    for number, word in enumerate(words):
        code += b"\x48\xb9" + struct.pack("<Q", word)  # mov rcx, word
        code += b"\x48\x89\x4f" + bytes([8 * number])  # mov [rdi + 8 * number], rcx
    return code + more + b"\xc3"  # ret


def _become_replica(port: int) -> Any:
    """Tell the server where it is; return what must be kept alive."""
    memory = _Memory()
    port_too = b"\x66\xc7\x47\x18" + struct.pack("<H", port)  # mov word [rdi + 24], port
    memory.write(_ADDRESS, _returns(b"127.0.0.1", port_too))
    memory.write(_SCHEME, _returns(b"http"))
    memory.write(_HANDLER, bytes.fromhex(_HANDLER_JUMP))
    # An empty user and an empty password, and a list of one such pair: strings of zeros.
    credentials = (ctypes.c_uint64 * 15)()
    start = ctypes.addressof(credentials)
    credentials[6], credentials[7], credentials[8] = start + 72, start + 120, start + 120
    pointer = b"\x48\xb8" + struct.pack("<Q", start)  # mov rax, start
    memory.write(_CREDENTIALS, pointer + b"\x31\xd2\xc3")  # xor edx, edx; ret
    return credentials


def _main(folder: Path, name: str, tcp: int, interserver: int, keeper: str, peers: str) -> None:
    os.environ["TZ"] = "UTC"
    time.tzset()
    replicas = "".join(_PEER.format(port=port) for port in peers.split(","))
    more = _REPLICA.format(name=name, keeper=keeper, replicas=replicas)
    (folder / "config.xml").write_text(_CONFIG.format(http=interserver, tcp=tcp, keeper=more))
    (folder / "users.xml").write_text(_USERS)
    extension = _load()
    kept = _become_replica(interserver)
    extension.set_signal_handlers_enabled(0)
    os.chdir(folder)
    server = threading.Thread(target=_serve, args=(extension, folder), daemon=True)
    server.start()
    while not (_listens(tcp) and _listens(interserver)):
        server.join(0.01)
        if not server.is_alive():
            os._exit(1)
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0 if kept else 1)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
