"""The plans of the statements inside the functions, as the server ran them.

They are made on empty tables, where a plan for empty tables would look best, and are then used on
tables with many rows of every state that nobody has analyzed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from queue_lib.stores.sql.dialect import AppendRow, Borrowed, Held
from tests.postgres.lab import GROUP, TOPIC, Lab

pytestmark = pytest.mark.slow

MANY = 20_000
SECOND = 1_000_000
FUTURE = 4_000_000_000 * SECOND

# Of each five rows one is in each of the first five states; the waiting ones are two long lanes.
_MESSAGES = f"""
INSERT INTO {{q}}messages (seq, id, topic_id, payload, priority, deliver_at, published_at,
  stored_at, untaken)
SELECT nextval('{{q}}message_seq'), 'm' || n, 1, 'x', n, 0, 0, {{q}}now_v1(null), false
FROM generate_series(1, {MANY}) n"""
_DELIVERIES = f"""
INSERT INTO {{q}}deliveries (group_id, seq, state, priority, at, key, token)
SELECT v.g, m.seq, m.state, m.priority % 7,
  CASE WHEN m.state IN (1, 3) THEN {FUTURE} ELSE 1 END,
  CASE WHEN m.state = 2 THEN 'lane' || m.seq % 2 END,
  CASE WHEN m.state = 3 THEN gen_random_uuid() END
FROM (SELECT *, seq % 5 AS state FROM {{q}}messages WHERE priority > 0) m, (VALUES (1), (2)) v(g)"""


class Observer:
    """One connection whose functions have their plans from the time when all was empty."""

    def __init__(self, lab: Lab, connection: sa.Connection) -> None:
        self._sql, self._tables = lab.sql, lab.tables
        self._connection = connection
        self._borrowed = Borrowed(connection)
        self._plans: list[dict[str, Any]] = []
        driver: Any = connection.connection.driver_connection
        driver.add_notice_handler(self._note)

    def _note(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        text = diagnostic.message_primary or ""
        if "plan:" in text:
            self._plans.append(json.loads(text.partition("plan:")[2]))

    def do(self, text: str) -> None:
        self._connection.exec_driver_sql(
            self._tables.qualify(text), execution_options={"no_parameters": True}
        )

    def nodes(self, work: Callable[[], object]) -> list[dict[str, Any]]:
        """Run something and return all nodes of all plans of the statements inside."""
        self._plans.clear()
        self.do("SET auto_explain.log_min_duration = 0")
        self.do("SET client_min_messages = log")
        try:
            work()
        finally:
            self.do("SET client_min_messages = warning")
            self.do("SET auto_explain.log_min_duration = -1")
        return [node for plan in self._plans for node in _walk(plan["Plan"])]

    def append(self, *ids: str, key: str | None = None, copy: bool = False) -> None:
        rows = [AppendRow(TOPIC, id, key, b"x", None, 0, 0, 0, copy) for id in ids]
        self._sql.append(self._borrowed, rows, None)

    def claim(self, limit: int = 10, cap: int = 0) -> list[Held]:
        rows, *_ = self._sql.claim(self._borrowed, 1, [], limit, 30 * SECOND, cap, None)
        return [Held(row.seq, row.token, row.key) for row in rows]

    def extend(self, claims: list[Held]) -> None:
        assert self._sql.extend(self._borrowed, 1, claims, 30 * SECOND, None)

    def requeue(self, claims: list[Held]) -> None:
        assert self._sql.requeue(self._borrowed, 1, claims, 0, None, 0, None)

    def settle(self, claims: list[Held], error: str | None = None) -> None:
        assert self._sql.settle(self._borrowed, 1, claims, error, None)

    def purge(self) -> None:
        self._sql.purge_dead(self._borrowed, 0, 10, None)
        self._sql.purge_messages(self._borrowed, 30 * SECOND, 30 * SECOND, 10, None)

    def use_everything(self) -> None:
        """Have each plan made."""
        for round_ in range(3):
            self.append(f"a{round_}", f"b{round_}", key="k", copy=True)
            self.append(f"c{round_}", f"d{round_}")
            self.requeue(self.claim())
            claims = self.claim(cap=10)
            self.extend(claims)
            self.settle(claims[:1])
            self.settle(claims[1:], "oops")
            self.settle(self.claim())
            self.purge()


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _walk(child)


@pytest.fixture
def observer(lab: Lab) -> Iterator[Observer]:
    engine = lab.host.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        try:
            connection.exec_driver_sql("LOAD 'auto_explain'")
        except sa.exc.DBAPIError as error:
            pytest.skip(f"the server has no auto_explain for us: {error.orig}")
        observer = Observer(lab, connection)
        observer.do("SET auto_explain.log_format = json")
        observer.do("SET auto_explain.log_nested_statements = on")
        observer.do("SET auto_explain.log_analyze = on")
        observer.do("SET auto_explain.log_timing = off")
        for table in ("topics", "groups", "messages", "deliveries"):
            observer.do(f"ALTER TABLE {{q}}{table} SET (autovacuum_enabled = off)")
        for group in (GROUP, "other"):
            lab.sql.ensure_group(Borrowed(connection), TOPIC, group, False, None)
        observer.use_everything()
        observer.do(_MESSAGES)
        observer.do(_DELIVERIES)
        yield observer
        connection.detach()  # it is full of settings


def check(nodes: list[dict[str, Any]], *, indexes: set[str], most: int = 50) -> None:
    """Check that nothing read or sorted more than `most` rows, and which indexes were used."""
    assert nodes
    used = set()
    for node in nodes:
        read = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        read += node.get("Rows Removed by Index Recheck", 0)
        assert read <= most, node
        assert node["Node Type"] != "Seq Scan", node
        assert "Bitmap" not in node["Node Type"], node
        if name := node.get("Index Name"):
            used.add(name.removeprefix("queue_"))
    assert indexes <= used


def test_publishing(observer: Observer) -> None:
    nodes = observer.nodes(lambda: observer.append("new", "newer", key="lane0"))
    check(nodes, indexes={"topics_name", "groups_name", "head"})
    check(observer.nodes(lambda: observer.append("newest", copy=True)), indexes={"groups_name"})


def test_claiming(observer: Observer) -> None:
    nodes = observer.nodes(observer.claim)
    check(nodes, indexes={"ready", "timer", "leased", "owing", "messages_pkey"})


def test_claiming_from_a_group_that_has_nothing_due(observer: Observer) -> None:
    observer.do("UPDATE {q}deliveries SET state = 1, at = at + 4e15 WHERE state = 0")
    assert observer.claim() == []
    check(observer.nodes(observer.claim), indexes={"ready", "timer", "leased", "owing"})


def test_claiming_under_a_cap_counts_the_leases_in_their_index(observer: Observer) -> None:
    nodes = observer.nodes(lambda: observer.claim(cap=MANY))
    check(nodes, indexes={"ready", "timer", "leased"}, most=MANY // 5 + 50)


def test_heartbeats_and_releases(observer: Observer) -> None:
    claims = observer.claim()
    check(observer.nodes(lambda: observer.extend(claims)), indexes={"deliveries_pkey"})
    check(observer.nodes(lambda: observer.requeue(claims)), indexes={"deliveries_pkey"})


def test_settling(observer: Observer) -> None:
    done, dead = observer.claim(), observer.claim()
    check(observer.nodes(lambda: observer.settle(done)), indexes={"deliveries_pkey"})
    check(observer.nodes(lambda: observer.settle(dead, "oops")), indexes={"deliveries_pkey"})


def test_settling_in_front_of_a_long_lane(observer: Observer) -> None:
    observer.do("UPDATE {q}deliveries SET key = 'lane0' WHERE state = 0 AND seq IN ("
                "SELECT seq FROM {q}deliveries WHERE state = 0 AND group_id = 1 "
                "ORDER BY priority, seq LIMIT 1)")  # fmt: skip
    claims = observer.claim(1)
    assert claims[0].key == "lane0"
    nodes = observer.nodes(lambda: observer.settle(claims))
    check(nodes, indexes={"deliveries_pkey", "waiting", "groups_pkey"})


def test_purging(observer: Observer) -> None:
    nodes = observer.nodes(observer.purge)
    check(nodes, indexes={"dead", "messages_pkey"})


def test_purging_walks_only_what_is_old(observer: Observer) -> None:
    """Twenty old messages that are still needed, thousands of young ones behind them."""
    observer.do("UPDATE {q}messages SET stored_at = 1 WHERE seq IN ("
                "SELECT seq FROM {q}messages ORDER BY seq LIMIT 20)")  # fmt: skip
    nodes = observer.nodes(observer.purge)
    check(nodes, indexes={"dead", "messages_pkey", "groups_name", "deliveries_pkey"})
