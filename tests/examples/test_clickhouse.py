"""The example on ClickHouse and PostgreSQL prints what its expected.txt says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.clickhouse_server import ClickHouseServer
from tests.examples.running import copied, run

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_two_processes_share_a_topic(
    clickhouse_server: ClickHouseServer,
    clickhouse_database: str,
    postgres_url: str,
    tmp_path: Path,
):
    folder = copied("08_clickhouse", tmp_path)
    url = clickhouse_server.url(clickhouse_database)
    printed = run(sys.executable, "main.py", url, postgres_url, cwd=folder)
    assert printed == (folder / "expected.txt").read_text()
