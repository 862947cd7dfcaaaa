"""Who is told of a fork, and that one failure does not keep the others from being told."""

from __future__ import annotations

import logging
import os

import pytest

from queue_lib import forks


class Recorder:
    def __init__(self, *, fails: bool = False) -> None:
        self.told: list[str] = []
        self._fails = fails

    def before_fork(self) -> None:
        self._tell("before")

    def after_fork(self, *, child: bool) -> None:
        self._tell("after in the child" if child else "after")

    def _tell(self, what: str) -> None:
        self.told.append(what)
        if self._fails:
            raise OSError(what)


@pytest.fixture
def only_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_forkers", type(forks._forkers)())


@pytest.mark.usefixtures("only_ours")
def test_a_failure_of_one_keeps_nobody_else_from_being_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    forkers = [Recorder(), Recorder(fails=True), Recorder()]
    for forker in forkers:
        forks.follow_forks(forker)
    with caplog.at_level(logging.ERROR, "queue_lib"):
        child = os.fork()
        if not child:
            as_they_should = all(f.told == ["before", "after in the child"] for f in forkers)
            os._exit(0 if as_they_should else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [forker.told for forker in forkers] == [["before", "after"]] * 3
    assert len(caplog.records) == 2


@pytest.mark.usefixtures("only_ours")
def test_who_left_is_not_told() -> None:
    forker = Recorder()
    forks.follow_forks(forker)
    forks.leave_forks(forker)
    forks.leave_forks(forker)
    forks._before()
    forks._after(child=False)
    assert forker.told == []
