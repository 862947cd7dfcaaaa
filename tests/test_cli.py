"""The command line: exit codes, one line for each failure, and no password in any of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from queue_lib import migrate
from queue_lib.cli import main


def test_migrate_and_downgrade(sqlite_url, capsys):
    assert main(["migrate", sqlite_url]) == 0
    assert capsys.readouterr().out == f"the tables are at revision {migrate.current(sqlite_url)}\n"
    assert main(["downgrade", sqlite_url, "--revision", "base"]) == 0
    assert capsys.readouterr().out == "the tables are dropped\n"
    assert migrate.current(sqlite_url) is None


def test_prefix_schema_and_revision(postgres_url, capsys):
    where = ["--schema", "messaging", "--table-prefix", "mq_"]
    assert main(["migrate", postgres_url, "--revision", "ql0001", *where]) == 0
    assert migrate.current(postgres_url, schema="messaging", table_prefix="mq_") == "ql0001"
    assert migrate.current(postgres_url) is None


def test_the_url_may_come_from_the_environment(sqlite_url, monkeypatch):
    monkeypatch.setenv("QUEUE_LIB_DATABASE_URL", sqlite_url)
    assert main(["migrate"]) == 0
    assert migrate.current(sqlite_url) is not None


def test_stats(sqlite_url, capsys):
    migrate.upgrade(sqlite_url)
    assert main(["stats", sqlite_url, "orders", "billing"]) == 0
    counted = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert counted["ready"] == counted["dead"] == "0"
    assert counted["oldest_ready_age"] == "-"


@pytest.mark.parametrize(
    "arguments",
    [
        ["stats", "sqlite:///{folder}/new.db", "orders", "billing"],  # no tables
        ["migrate", "sqlite:///{folder}/missing/q.db"],
        ["migrate", "sqlite:///{folder}/new.db", "--revision", "ql9999"],
        ["migrate", "sqlite:///{folder}/new.db", "--table-prefix", "Not Good"],
        ["migrate", "memory://"],
        ["migrate", "postgresql+nosuch://u:sesame@127.0.0.1/d"],
        ["migrate", "postgresql+psycopg://u:sesame@127.0.0.1:1/d"],
        ["migrate", "postgresql+psycopg://u:ses/ame@127.0.0.1:1/d"],  # not quoted
        ["migrate", "postgresql+psycopg://u:sesame@127.0.0.1:1/d?sesame=1"],  # named by the driver
        ["migrate", "not a url: sesame"],
        ["migrate"],
    ],
)
def test_a_failure_is_one_line(arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("QUEUE_LIB_DATABASE_URL", raising=False)
    assert main([argument.replace("{folder}", str(tmp_path)) for argument in arguments]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("queue_lib: ")
    assert printed.err.count("\n") == 1
    assert "sesame" not in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["downgrade", "sqlite:///unused.db"]])
def test_a_wrong_call_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.processes
def test_as_a_module(sqlite_url):
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "queue_lib", "migrate", sqlite_url]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert migrate.current(sqlite_url) is not None
