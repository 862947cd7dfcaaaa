"""The command line: exit codes, one line for each failure, and no password in any of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from queue_lib import migrate, open_queue
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


def test_stats(sqlite_migrated_url, capsys):
    with open_queue(sqlite_migrated_url) as queue:
        queue.subscribe("orders", "billing", print)
    sqlite_url = sqlite_migrated_url
    assert main(["stats", sqlite_url, "orders", "billing"]) == 0
    counted = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert counted["ready"] == counted["dead"] == "0"
    assert counted["oldest_ready_age"] == "-"


@pytest.mark.parametrize(
    "arguments",
    [
        ["stats", "sqlite:///{folder}/empty.db", "orders", "billing"],  # no tables
        ["stats", "sqlite:///{folder}/new.db", "orders", "billing"],
        ["migrate", "sqlite:///{folder}/missing/q.db"],
        ["downgrade", "sqlite:///{folder}/new.db", "--revision", "base"],
        ["migrate", "sqlite:///{folder}/new.db", "--revision", "ql9999"],
        ["migrate", "memory://"],
        ["migrate", "postgresql+nosuch://u:sesame@127.0.0.1/d"],
        ["migrate", "postgresql+psycopg://u:sesame@127.0.0.1:1/d"],
        ["migrate", "postgresql+psycopg://u:ses/ame@127.0.0.1:1/d"],  # not quoted
        ["migrate", "postgresql+psycopg://u:sesame@127.0.0.1:1/d?sesame=1"],  # named by the driver
    ],
)
def test_a_failure_is_one_line(arguments, tmp_path, capsys):
    (tmp_path / "empty.db").touch()
    fails(1, arguments, tmp_path, capsys)


@pytest.mark.parametrize(
    "arguments",
    [
        ["stats", "sqlite:///{folder}/new.db", "no topic", "billing"],
        ["stats", "sqlite:///{folder}/new.db", "orders", "no/group"],
        ["stats", "sqlite:///{folder}/new.db", "orders", "billing", "--table-prefix", "Not Good"],
        ["migrate", "sqlite:///{folder}/new.db", "--table-prefix", "Not Good"],
        ["migrate", "sqlite:///{folder}/new.db?timeout=abc"],
        ["migrate", "not a url: sesame"],
        ["migrate"],
    ],
)
def test_what_can_never_work_is_one_line_and_exits_with_2(arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("QUEUE_LIB_DATABASE_URL", raising=False)
    fails(2, arguments, tmp_path, capsys)
    assert list(tmp_path.iterdir()) == []


def fails(code, arguments, folder, capsys):
    assert main([argument.replace("{folder}", str(folder)) for argument in arguments]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("queue_lib: ")
    assert printed.err.count("\n") == 1
    assert "sesame" not in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    ("topic", "group"), [("orders", "unknown"), ("unknown", "billing"), ("unknown", "unknown")]
)
def test_an_unknown_group_is_told_from_an_empty_one(sqlite_migrated_url, topic, group, capsys):
    with open_queue(sqlite_migrated_url) as queue:
        queue.subscribe("orders", "billing", print)
    assert main(["stats", sqlite_migrated_url, topic, group]) == 1
    assert capsys.readouterr().err == f"queue_lib: topic {topic}: has no group {group}\n"


@pytest.mark.parametrize(
    "arguments",
    [["stats", "{url}", "orders", "billing"], ["downgrade", "{url}", "--revision=base"]],
)
def test_looking_makes_no_file(arguments, sqlite_url, tmp_path, capsys):
    assert main([argument.replace("{url}", sqlite_url) for argument in arguments]) == 1
    assert capsys.readouterr().err == f"queue_lib: {tmp_path}/queue.db: there is no such file\n"
    assert list(tmp_path.iterdir()) == []


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
