"""How a cluster is asked for, and what is then sent: no server needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

if not os.environ.get("CI"):
    pytest.importorskip("clickhouse_sqlalchemy", reason="the extra clickhouse is not installed")

from queue_lib.errors import InvalidOptionsError
from queue_lib.stores.clickhouse.cluster import CLUSTER_OPTION, Cluster, cluster_of, split_url
from queue_lib.stores.clickhouse.database import Database, own_engine
from queue_lib.stores.clickhouse.open import open_clickhouse_store
from queue_lib.stores.clickhouse.schema import (
    build_clickhouse_tables,
    create_statements_v1,
    drop_statements_v1,
)

URL = "clickhouse+native://default:@127.0.0.1:9000/app"


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    database = Database(sa.make_url(request.param))
    yield database
    database.close()


def test_the_url_says_it_and_the_driver_does_not_see_it():
    url = sa.make_url(
        f"{URL}?cluster=main&replicas=3&replica_path=/q/{{table}}&replica_name=r&connect_timeout=5"
    )
    rest, cluster = split_url(url)
    assert rest.render_as_string(hide_password=False) == f"{URL}?connect_timeout=5"
    assert cluster == Cluster("main", 3, "/q/{table}", "r")
    assert split_url(rest) == (rest, None)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("cluster=main", "replicas: is missing"),
        ("replicas=2", "cluster: is missing"),
        ("replica_path=/q/{table}", "cluster: is missing"),
        ("cluster=main&replicas=two", "must be a number"),
        ("cluster=main&replicas=0", "at least 1"),
        ("cluster=&replicas=2", "cluster: is missing"),
        ("cluster=main&cluster=other&replicas=2", "more than once"),
        ("cluster=main&replicas=2&replica_path=/q/all", "all tables would be one"),
    ],
)
def test_what_cannot_be_right_is_refused_before_anything_is_opened(query, text):
    with pytest.raises(InvalidOptionsError, match=text):
        open_clickhouse_store(sa.make_url(f"{URL}?{query}"))


def test_an_engine_carries_it_as_an_option():
    cluster = Cluster("main", 2)
    engine = sa.create_engine(URL, execution_options={CLUSTER_OPTION: cluster})
    own = own_engine(engine)
    assert cluster_of(engine) == cluster_of(own) == cluster
    own.dispose()
    for bad in (
        sa.create_engine(f"{URL}?cluster=main&replicas=2"),
        sa.create_engine(URL, execution_options={CLUSTER_OPTION: "main"}),
    ):
        with pytest.raises(InvalidOptionsError, match=CLUSTER_OPTION):
            own_engine(bad)


def test_every_statement_about_a_table_is_for_the_whole_cluster():
    tables = build_clickhouse_tables("app", cluster=Cluster("ma`in", 2))
    statements = [*create_statements_v1(tables), *drop_statements_v1(tables)]
    assert len(statements) == 6
    assert all(" ON CLUSTER `ma\\`in` " in statement for statement in statements)
    _, messages, live = statements[:3]
    assert "ENGINE = ReplicatedMergeTree()\n" in messages
    assert "ENGINE = ReplicatedReplacingMergeTree(ver, del)" in live
    named = build_clickhouse_tables("app", cluster=Cluster("main", 2, "/q/{table}", "{host}"))
    live = create_statements_v1(named)[2]
    assert "ReplicatedReplacingMergeTree('/q/{table}', '{host}', ver, del)" in live


def test_on_one_server_nothing_of_it_is_sent():
    tables = build_clickhouse_tables("app")
    text = " ".join([*create_statements_v1(tables), *drop_statements_v1(tables)])
    assert "CLUSTER" not in text
    assert "Replicated" not in text
    assert "upwards" not in text


@pytest.mark.parametrize("database", [f"{URL}?cluster=main&replicas=3"], indirect=True)
def test_every_write_waits_for_all_replicas_and_is_a_block_of_its_own(database: Any):
    first, second = database._writing("app.queue_messages"), database._writing("app.queue_live")
    assert first["insert_quorum_parallel"] == 0
    assert second["insert_quorum_parallel"] == 1
    for settings in (first, second):
        assert settings["insert_quorum"] == 3
        assert settings["select_sequential_consistency"] == 1
        assert settings["async_insert"] == 0
    assert first["insert_deduplication_token"] != second["insert_deduplication_token"]
