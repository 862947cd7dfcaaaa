"""One database for each test, one log, and children that end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.harness import Child, Start
from tests.processes.log import Log
from tests.processes.worker import Settings

_SHOWN = 80  # lines at the end of the log


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a database that has the tables, without a row."""
    migrated: str = request.getfixturevalue(f"{request.param}_migrated_url")
    return migrated


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """The log of the test; its end is shown when the test fails."""
    log = Log(tmp_path / "log")
    yield log
    log.close()
    print(*log.path.read_text().splitlines()[-_SHOWN:], sep="\n")


@pytest.fixture
def settings(url: str, log: Log) -> Settings:
    """Settings that have members share the database and the log of the test."""
    return Settings(url=url, log=str(log.path))


@pytest.fixture
def start(log: Log, tmp_path: Path) -> Iterator[Start]:
    """Start children; what they say on standard error is shown when the test fails."""
    children: list[Child] = []
    errors = tmp_path / "errors"

    def started(settings: Settings) -> Child:
        children.append(Child(settings, log, errors))
        return children[-1]

    yield started
    for child in children:
        child.reap()
    if errors.exists():
        print(errors.read_text())
