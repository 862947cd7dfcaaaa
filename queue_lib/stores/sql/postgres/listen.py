"""Wake-ups between processes: latency only, never needed for correctness.

One channel for every queue of a database. A payload is the queue, who sent it, and the topic or
``*`` for any: a few hundred bytes, whatever is published. Processes ignore what they sent
themselves, since they have woken their own subscriptions already; not so what was sent inside a
caller's transaction, which tells the publishing process, too, that the caller has committed.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psycopg

from queue_lib.logs import get_logger
from queue_lib.stores.schema import Tables

__all__ = ["ANY", "CHANNEL", "IN_TRANSACTION", "Notifier", "follow", "keep_alive", "sign"]

CHANNEL = "queue_lib"
ANY = "*"
"""Stands for many topics."""
IN_TRANSACTION = "tx"
"""Sent by somebody's transaction: no instance has this name."""

_logger = get_logger("queue_lib.stores.sql")

_GATHER = 0.01  # seconds in which further wake-ups join the next notification
_RARE = 0.05  # seconds without a publish before one that sends its own wake-up
_STEP = 0.2  # seconds until a stop is noticed
_SILENCE = 30.0  # seconds without a word before the connection is tried
_ANSWER = 10.0  # seconds that the server has to answer
_JOIN = 5.0


def sign(tables: Tables, sender: str) -> str:
    """Return what stands before the topic in a payload."""
    return f"{tables.qualify('{q}')} {sender}"


class Notifier:
    """Sends wake-ups from a thread of its own, folded: a NOTIFY makes commits queue up.

    The first one is sent at once, and what comes within `_GATHER` after it together. The thread
    starts with the first. Only after a silence the publisher sends its own, with its commit: that
    saves a round trip and a switch of threads, and is so seldom that no commits meet.
    """

    def __init__(self, send: Callable[[list[str]], None]) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._topics: set[str] = set()  # guarded by _changed
        self._thread: threading.Thread | None = None  # guarded by _changed
        self._gathering = False  # guarded by _changed
        self._closed = False  # guarded by _changed
        self._last = -math.inf  # monotonic, of the last publish; guarded by _changed

    def lets_publisher_send(self) -> bool:
        """Say whether a publish that is about to begin should announce itself."""
        now = time.monotonic()
        with self._changed:
            silence, self._last = now - self._last, now
            return silence > _RARE

    def add(self, topics: Iterable[str]) -> None:
        """Have the topics announced."""
        with self._changed:
            if self._closed:
                return
            self._topics.update(topics)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="queue-notifier", daemon=True
                )
                self._thread.start()
            if not self._gathering:  # else it looks by itself: a switch of threads for each publish
                self._changed.notify()

    def close(self) -> None:
        """Send what is left, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(_JOIN)

    def freeze(self) -> None:
        """Let nothing be half done until `thaw`: the process is about to fork."""
        self._changed.acquire()

    def thaw(self) -> None:
        """Go on after `freeze`, in the parent."""
        self._changed.release()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._topics or self._closed)
                topics, self._topics = sorted(self._topics), set()
            if not topics:
                return
            try:
                self._send(topics)
            except Exception as error:  # noqa: BLE001 - the receivers poll; publishers hear of faults
                _logger.debug("wake-ups for %s were not sent: %s", topics, error)
            with self._changed:
                self._gathering = True
                self._changed.wait_for(lambda: self._closed, _GATHER)
                self._gathering = False


def follow(
    connection: psycopg.Connection[Any],
    heard: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """Call `heard` with each payload on the channel until `stop` is set.

    Raises:
        psycopg.Error: the connection is lost, or silent when asked.
    """
    libpq = connection.pgconn
    last_word, asked = time.monotonic(), False
    with selectors.DefaultSelector() as selector:
        selector.register(libpq.socket, selectors.EVENT_READ)
        while not stop.is_set():
            if selector.select(_STEP):
                libpq.consume_input()
                last_word = time.monotonic()
            for payload in set(_received(libpq)):
                heard(payload)
            # Asked without waiting for the answer: a dead peer must not hold up a stop.
            silence = time.monotonic() - last_word
            if asked and not libpq.is_busy():
                while libpq.get_result() is not None:
                    pass
                asked = False
            elif asked and silence > _SILENCE + _ANSWER:
                raise psycopg.OperationalError("the server does not answer")
            elif not asked and silence > _SILENCE:
                libpq.send_query(b"SELECT 1")
                asked = True


def _received(libpq: psycopg.pq.abc.PGconn) -> Iterator[str]:
    while (notification := libpq.notifies()) is not None:
        yield notification.extra.decode(errors="replace")


def keep_alive(connection: psycopg.Connection[Any]) -> None:
    """Have a connection whose peer is gone without a word fail within a minute, not in hours."""
    options = (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 15),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 30_000),  # ms until sent data must be confirmed
    )
    # A Unix socket has no such options, and some systems lack some of them.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as own:
        for level, name, value in options:
            if (option := getattr(socket, name, None)) is not None:
                own.setsockopt(level, option, value)
