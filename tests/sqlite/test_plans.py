"""Every hot statement seeks in an index, whatever the planner has heard about the tables."""

from __future__ import annotations

import re
from typing import Any

import pytest

from queue_lib.stores.sql.sqlite.statements import render
from tests.sqlite.support import NOW, SECOND, TABLES, Queue, message

SQL = render(TABLES)
BY_KEY = "queue_deliveries USING PRIMARY KEY (group_id=? AND seq=?)"
PLANS = {
    "find_topic": [
        "t USING INDEX sqlite_autoindex_queue_topics_1 (name=?)",
        "g USING INDEX sqlite_autoindex_queue_groups_1 (topic_id=?)",
        "queue_messages",
    ],
    "find_group": [
        "t USING INDEX sqlite_autoindex_queue_topics_1 (name=?)",
        "g USING INDEX sqlite_autoindex_queue_groups_1 (topic_id=? AND name=?)",
    ],
    "fan_out": [
        "m USING INTEGER PRIMARY KEY (rowid>?)",
        "g USING INDEX sqlite_autoindex_queue_groups_1 (topic_id=?)",
        "head USING INDEX queue_head (group_id=? AND key=?)",
    ],
    "fan_out_unkeyed": [
        "m USING INTEGER PRIMARY KEY (rowid>?)",
        "g USING INDEX sqlite_autoindex_queue_groups_1 (topic_id=?)",
    ],
    "peek": [
        "queue_deliveries USING INDEX queue_ready (group_id=?)",
        "queue_deliveries USING INDEX queue_timer (group_id=?)",
        "queue_deliveries USING INDEX queue_leased (group_id=?)",
    ],
    "end_timers": [BY_KEY, "queue_deliveries USING INDEX queue_timer (group_id=? AND at<?)"],
    "end_leases": [BY_KEY, "queue_deliveries USING INDEX queue_leased (group_id=? AND at<?)"],
    "live_leases": ["queue_deliveries USING INDEX queue_leased (group_id=? AND at>?)"],
    "claim": [
        BY_KEY,
        "queue_deliveries USING INDEX queue_ready (group_id=?)",
        "queue_deliveries USING INDEX queue_timer (group_id=? AND at<?)",
        "queue_deliveries USING INDEX queue_leased (group_id=? AND at<?)",
    ],
    "claimed": [
        "d USING PRIMARY KEY (group_id=? AND seq=?)",
        "m USING INTEGER PRIMARY KEY (rowid=?)",
    ],
    "ack": [BY_KEY],
    "kill": [BY_KEY],
    "promote": [BY_KEY, "next USING INDEX queue_waiting (group_id=? AND key=?)"],
    "requeue": [BY_KEY],
    "extend": [BY_KEY],
    "purge_dead": [BY_KEY, "d USING INDEX queue_dead (group_id=? AND at<?)"],
    "spent_messages": [
        "queue_messages USING INTEGER PRIMARY KEY (rowid>?)",
        "g USING INDEX sqlite_autoindex_queue_groups_1 (topic_id=?)",
        "d USING PRIMARY KEY (group_id=? AND seq=?)",
    ],
    "delete_messages": ["queue_messages USING INTEGER PRIMARY KEY (rowid=?)"],
    "count": [
        "queue_deliveries USING PRIMARY KEY (group_id=?)",
        "queue_deliveries USING INDEX queue_waiting (group_id=?)",
        "queue_deliveries USING INDEX queue_leased (group_id=?)",
        "queue_deliveries USING INDEX queue_dead (group_id=?)",
        "queue_deliveries USING INDEX queue_timer (group_id=?)",
    ],
}
# Rows that a scan may walk: the statement's own list, or what a subquery has already cut down.
SCANS = re.compile(
    r"SCAN (json_each|asked|lane|clock|ready|timer|CONSTANT ROW|fresh|m$|\(subquery|g USING)"
)


@pytest.fixture(params=["never analysed", "analysed while empty", "analysed when full"])
def known(request: pytest.FixtureRequest, queue: Queue) -> Queue:
    def analyse() -> None:
        queue.database.write(lambda connection: connection.execute("ANALYZE"))

    if request.param == "analysed while empty":
        analyse()
    keys = [None, None, "a", "b", *(f"k{number}" for number in range(20))]
    queue.append(*(message(f"m{n}", key=keys[n % len(keys)]) for n in range(600)))
    queue.append(*(message(f"t{n}", deliver_at=NOW + SECOND) for n in range(300)))
    queue.settle(queue.claim(20)[0])
    queue.settle(queue.claim(20)[0], "dead")
    queue.claim(20)
    if request.param == "analysed when full":
        analyse()
    return queue


def test_every_statement_seeks_where_it_should(known: Queue):
    plans = {name: explain(known, name) for name in PLANS}
    assert {
        name: {step.split(maxsplit=1)[1] for step in plan if step.startswith("SEARCH")}
        for name, plan in plans.items()
    } == {name: set(steps) for name, steps in PLANS.items()}
    scans = [step for plan in plans.values() for step in plan if step.startswith("SCAN")]
    assert [step for step in scans if not SCANS.match(step)] == []
    # The one sort is by lane, of the messages that are being published.
    assert {name for name, plan in plans.items() if "TEMP B-TREE" in str(plan)} == {"fan_out"}


def explain(queue: Queue, name: str) -> list[str]:
    text = SQL[name]
    values: dict[str, Any] = dict.fromkeys(re.findall(r":(\w+)", text), 1)
    values |= {"claims": "{}", "seqs": "[]", "lanes": "[]", "groups": "[]", "now": None}

    def run(connection: Any) -> list[str]:
        rows = connection.execute(f"EXPLAIN QUERY PLAN {text}", values)
        # Releases differ in what they call covering, and in how they show a left join.
        return [row[3].removesuffix(" LEFT-JOIN").replace(" COVERING", "") for row in rows]

    return queue.database.read(run)
