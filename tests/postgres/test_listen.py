"""Wake-ups between processes: who hears what, when, and what a lost connection does."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Self

import psycopg
import pytest
import sqlalchemy as sa

from queue_lib.errors import StoreUnavailableError, UnsupportedError
from queue_lib.stores.schema import build_tables
from queue_lib.stores.sql.postgres import PostgresDatabase, listen
from tests.postgres.lab import DEADLINE, TOPIC, Lab, eventually, message


class Listener:
    """A thread in `listen`, and what it has heard."""

    def __init__(self, lab: Lab, database: PostgresDatabase) -> None:
        self.topics: queue.Queue[str] = queue.Queue()
        self.stop = threading.Event()
        self.ended: Future[None] = lab.start(database.listen, self.topics.put, self.stop)
        assert self.next() == ""  # whatever was published before

    def next(self) -> str:
        return self.topics.get(timeout=DEADLINE)


@contextmanager
def listening(lab: Lab, database: PostgresDatabase) -> Iterator[Listener]:
    listener = Listener(lab, database)
    try:
        yield listener
    finally:
        listener.stop.set()
    listener.ended.result(DEADLINE)


@contextmanager
def overhearing(lab: Lab) -> Iterator[psycopg.Connection[Any]]:
    """A connection that hears whatever is sent on the channel."""
    url = lab.host.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("LISTEN queue_lib")
        yield connection


def notify(lab: Lab, text: str) -> None:
    lab.do(f"SELECT pg_notify('queue_lib', '{text}')")


def heard(connection: psycopg.Connection[Any], until: str) -> list[str]:
    """Return the payloads up to one that the test sends as the last."""
    payloads = []
    for notification in connection.notifies(timeout=DEADLINE):
        if notification.payload == until:
            break
        payloads.append(notification.payload)
    return payloads


@pytest.fixture
def database(lab: Lab) -> Iterator[PostgresDatabase]:
    with closing(lab.database()) as database:
        yield database


def test_a_publish_of_another_process_is_heard(lab: Lab, database: PostgresDatabase) -> None:
    with listening(lab, database) as listener:
        lab.store().append([message("a")])
        assert listener.next() == TOPIC


def test_a_process_does_not_hear_itself(lab: Lab, database: PostgresDatabase) -> None:
    with listening(lab, database) as listener:
        database._notify([TOPIC])  # what its thread does; here, so that it is over
        lab.store().append([message("b", topic="another")])
        assert listener.next() == "another"


def test_after_a_silence_a_publish_sends_its_own_wake_up_with_its_commit(
    lab: Lab, database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saves a round trip; but what comes soon after it is sent by the thread, folded."""
    by_thread: list[list[str]] = []
    sender = lab.database()
    sender._notifier = listen.Notifier(by_thread.append)
    store = lab.store(sender)
    with listening(lab, sender) as itself, listening(lab, database) as listener:
        store.append([message("a"), message("b", topic="another")])
        assert {listener.next(), listener.next()} == {TOPIC, "another"}
        store.append([message("c")])
        eventually(lambda: by_thread == [[TOPIC]])
        monkeypatch.setattr(listen, "_RARE", 0.0)
        store.append([message("d")])
        assert listener.next() == TOPIC
        lab.store().append([message("e", topic="the end")])
        assert itself.next() == "the end"
    assert by_thread == [[TOPIC]]


def test_a_process_hears_the_commit_of_its_callers_transaction(
    lab: Lab, database: PostgresDatabase
) -> None:
    store = lab.store(database)
    with listening(lab, database) as listener, lab.transaction() as mine:
        store.append_in(mine, [message("a", topic="rolled-back")])
        mine.rollback()
        store.append_in(mine, [message("b", topic="committed")])
        with lab.transaction() as other:
            store.append_in(other, [message("c", topic="before-it")])
            other.commit()
        assert listener.next() == "before-it"
        mine.commit()
        assert listener.next() == "committed"


def test_another_queue_in_the_database_is_not_heard(lab: Lab, database: PostgresDatabase) -> None:
    elsewhere = build_tables("elsewhere_", lab.tables.schema)
    with (
        listening(lab, database) as listener,
        closing(PostgresDatabase(lab.host.url, elsewhere)) as stranger,
    ):
        stranger.published(["theirs"])
        stranger.close()
        lab.store().append([message("a")])
        assert listener.next() == TOPIC


MANY = [message(f"m{number}", topic=f"{number:03}{'t' * 197}") for number in range(300)]


def test_three_hundred_topics_with_long_names(lab: Lab, database: PostgresDatabase) -> None:
    """A payload of 8,000 bytes would be refused, and with it the publish."""
    with listening(lab, database) as listener:
        lab.store().append(MANY)
        assert listener.next() == ""
        with lab.transaction() as mine:
            lab.store().append_in(mine, MANY[:16])  # stored already: nothing new
            lab.store().append_in(mine, [message(f"n{each.id}", topic=each.topic) for each in MANY])
            mine.commit()
        assert listener.next() == ""
        lab.store().append([message("one", topic=MANY[0].topic)])
        assert listener.next() == MANY[0].topic


def test_a_burst_is_folded(lab: Lab) -> None:
    """A NOTIFY in each publish would have their commits queue up behind one lock."""
    with overhearing(lab) as connection:
        store = lab.store()
        for number in range(300):
            store.append([message(f"m{number}", topic=f"t{number % 3}")])
        store.close()  # sends what is left
        notify(lab, "the end")
        payloads = heard(connection, "the end")
    assert {payload.split()[-1] for payload in payloads} == {"t0", "t1", "t2"}
    assert len(payloads) < 200


def test_closing_sends_what_is_left(lab: Lab) -> None:
    with overhearing(lab) as connection:
        store = lab.store()
        store.append([message("a")])
        store.close()
        notify(lab, "the end")
        assert [payload.split()[-1] for payload in heard(connection, "the end")] == [TOPIC]


def test_wake_ups_turned_off(lab: Lab) -> None:
    store = lab.store(wake=False)
    with pytest.raises(UnsupportedError):
        store.listen(lambda _: None, threading.Event())
    with overhearing(lab) as connection:
        store.append([message("a")])
        with lab.transaction() as mine:
            store.append_in(mine, [message("b", "k")])
            mine.commit()
        store.close()
        notify(lab, "the end")
        assert heard(connection, "the end") == []


def test_a_fault_while_sending_is_nobodys(lab: Lab) -> None:
    sent: list[list[str]] = []
    again = threading.Event()

    def send(topics: list[str]) -> None:
        sent.append(topics)
        if len(sent) == 1:
            raise OSError("no route to host")
        again.set()

    notifier = listen.Notifier(send)
    notifier.add(["a"])
    eventually(lambda: sent)
    notifier.add(["c", "b"])
    assert again.wait(DEADLINE)
    notifier.close()
    assert sent == [["a"], ["b", "c"]]


def test_listening_uses_no_place_in_the_pool(lab: Lab) -> None:
    host = sa.create_engine(lab.host.url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    with closing(lab.database(host)) as database, listening(lab, database):
        for number in range(5):
            lab.store(lab.database(lab.host.url)).append([message(f"m{number}")])
            database.write(lambda connection: connection.execute("SELECT 1"))
    host.dispose()


def test_the_listener_stops_when_told(lab: Lab, database: PostgresDatabase) -> None:
    listener = Listener(lab, database)
    told = time.monotonic()
    listener.stop.set()
    listener.ended.result(DEADLINE)
    assert time.monotonic() - told < 2.0


def test_a_lost_connection_raises_and_listening_again_catches_up(
    lab: Lab, database: PostgresDatabase
) -> None:
    listener = Listener(lab, database)
    lab.do(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE query = 'LISTEN queue_lib' AND datname = current_database()"
    )
    with pytest.raises(StoreUnavailableError, match="cannot listen"):
        listener.ended.result(DEADLINE)
    with listening(lab, database) as again:  # which hears "" first
        lab.store().append([message("a")])
        assert again.next() == TOPIC


def test_a_server_out_of_reach(lab: Lab) -> None:
    database = lab.database(listen_url="postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(StoreUnavailableError, match="cannot listen"):
        database.listen(lambda _: None, threading.Event())


class DeafProxy:
    """Passes bytes between one client and the server, until it is told to drop them."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._sockets = ExitStack()
        self._door = self._sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port: int = self._door.getsockname()[1]
        self.deaf = threading.Event()
        self._work = [lab.start(self._accept)]

    def _accept(self) -> None:
        url = self._lab.host.url
        client = self._sockets.enter_context(self._door.accept()[0])
        server = self._sockets.enter_context(
            socket.create_connection((url.host or "127.0.0.1", url.port or 5432))
        )
        self._work += [
            self._lab.start(self._pass, *pair) for pair in ((client, server), (server, client))
        ]

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(65536):
            if not self.deaf.is_set():
                target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._work:
            each.exception(DEADLINE)
        self._sockets.close()


def test_a_silent_connection_is_tried_and_a_dead_one_is_noticed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "_STEP", 0.01)
    monkeypatch.setattr(listen, "_SILENCE", 0.02)
    monkeypatch.setattr(listen, "_ANSWER", 0.5)
    asked = "SELECT query_start FROM pg_stat_activity WHERE application_name = 'deaf'"
    with DeafProxy(lab) as proxy:
        url = lab.host.url.set(host="127.0.0.1", port=proxy.port)
        url = url.update_query_dict({"application_name": "deaf"})
        with closing(lab.database(listen_url=url)) as database:
            listener = Listener(lab, database)
            before = lab.ask(asked)
            eventually(lambda: lab.ask(asked) > before)
            before = lab.ask(asked)
            eventually(lambda: lab.ask(asked) > before)  # it was answered, and tried again
            lab.store().append([message("a")])
            assert listener.next() == TOPIC
            proxy.deaf.set()
            with pytest.raises(StoreUnavailableError, match="does not answer"):
                listener.ended.result(DEADLINE)


def test_keep_alive_is_set_on_every_connection(lab: Lab, database: PostgresDatabase) -> None:
    driver: Any = database.read(lambda connection: connection)
    with socket.fromfd(driver.fileno(), socket.AF_INET, socket.SOCK_STREAM) as copy:
        assert copy.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
        assert copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
