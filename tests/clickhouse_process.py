"""A ClickHouse server in the foreground, out of the wheel `chdb-core`: no package, no container.

The wheel's extension holds clickhouse-local, which can be told to listen. Its public interface
cannot do that: it opens another engine first. So the extension is loaded without its package,
and only under the release that the extra `test` pins.

    python clickhouse_process.py FOLDER HTTP_PORT TCP_PORT [keeper]

Says ``ready`` once it answers. At the end of its input it stops in good order.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import socket
import sys
import threading
import time
import types
import urllib.request
from pathlib import Path
from typing import Any

_FOR_EVER = "queue-lib-tests: serve"

_CONFIG = """
<clickhouse>
    <listen_host>127.0.0.1</listen_host>
    <http_port>{http}</http_port>
    <tcp_port>{tcp}</tcp_port>
    <timezone>UTC</timezone>
    <users_config>users.xml</users_config>
    <mark_cache_size>67108864</mark_cache_size>
    {keeper}
</clickhouse>
"""

_KEEPER = """
    <zookeeper><implementation>testkeeper</implementation></zookeeper>
    <keeper_map_path_prefix>/keeper_map</keeper_map_path_prefix>
"""

_USERS = """
<clickhouse>
    <profiles><default><max_threads>2</max_threads></default></profiles>
    <quotas><default/></quotas>
    <users>
        <default>
            <password></password>
            <networks><ip>127.0.0.1</ip></networks>
            <profile>default</profile>
            <quota>default</quota>
            <access_management>1</access_management>
        </default>
    </users>
</clickhouse>
"""

_SERVE = f"""
SYSTEM START LISTEN HTTP;
SYSTEM START LISTEN TCP;
/* {_FOR_EVER} */ SELECT 1 FROM system.numbers WHERE sleepEachRow(1)
    SETTINGS function_sleep_max_microseconds_per_block = 0, max_block_size = 1, max_threads = 1
"""


def _load() -> Any:
    found = importlib.util.find_spec("chdb")
    assert found is not None
    assert found.submodule_search_locations is not None
    folder = Path(found.submodule_search_locations[0])
    package = types.ModuleType("chdb")  # without running its __init__
    package.__path__ = [str(folder)]
    sys.modules["chdb"] = package
    before = Path.cwd()
    os.chdir(folder)  # the extension looks for its libraries here
    try:
        ctypes.CDLL(str(folder / "_chdb.abi3.so"), mode=sys.getdlopenflags() | os.RTLD_DEEPBIND)
        return importlib.import_module("chdb._chdb")
    finally:
        os.chdir(before)


def _serve(extension: Any, folder: Path) -> None:
    try:
        extension.query(_SERVE, "TabSeparated", path=str(folder / "data"))
    except Exception as error:  # noqa: BLE001 - whatever it is, the owner reads it
        print(error, file=sys.stderr, flush=True)


def _ask(port: int, path: str, query: str | None = None) -> bytes:
    data = None if query is None else query.encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", data, timeout=10) as answer:
        content: bytes = answer.read()
        return content


def _answers(http: int, tcp: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", tcp), timeout=10).close()
        return _ask(http, "ping") == b"Ok.\n"
    except OSError:
        return False


def _main(folder: Path, http: int, tcp: int, keeper: str = "") -> None:
    os.environ["TZ"] = "UTC"
    time.tzset()
    config = _CONFIG.format(http=http, tcp=tcp, keeper=keeper and _KEEPER)
    (folder / "config.xml").write_text(config)
    (folder / "users.xml").write_text(_USERS)
    extension = _load()
    extension.set_signal_handlers_enabled(0)
    os.chdir(folder)  # where the server looks for config.xml
    server = threading.Thread(target=_serve, args=(extension, folder), daemon=True)
    server.start()
    while not _answers(http, tcp):
        server.join(0.01)
        if not server.is_alive():
            os._exit(1)
    print("ready", flush=True)
    sys.stdin.read()
    _ask(http, "", f"KILL QUERY WHERE query LIKE '/* {_FOR_EVER} %' ASYNC")
    server.join(20)
    os._exit(0)  # the extension's own threads do not end


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
