"""Locks between processes, all of which are alive."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from queue_lib.errors import StoreUnavailableError
from queue_lib.testing.conformance.case import every_test_requires
from queue_lib.testing.conformance_lockers.case import AT_ONCE, KEY, LockerCase

__all__ = ["ProcessConformance"]


@every_test_requires("processes")
class ProcessConformance(LockerCase):
    """What holds between processes that do not die."""

    @pytest.mark.slow
    def test_eight_processes_lose_no_count_and_share_no_fence(self, tmp_path: Path) -> None:
        counter = tmp_path / "counter"
        counter.write_text("0")
        members = self.members(8)
        for member in members:
            member.tell("count", KEY, str(counter), 8)
        fences = sorted(itertools.chain.from_iterable(member.hear() for member in members))
        assert counter.read_text() == "64"
        assert fences == list(range(1, 65))

    def test_lockers_of_one_process_share_nothing_but_the_locks(self) -> None:
        one, other = self.locker(), self.locker()
        first = self.take(one)
        with pytest.raises(StoreUnavailableError):
            other.acquire(KEY, AT_ONCE)
        first.release()
        second = self.take(other)
        first.release()
        assert second.is_held()
        assert second.fence == first.fence + 1

    @pytest.mark.slow
    def test_no_process_starves(self) -> None:
        members = self.members(4)
        for member in members:
            member.tell("contend", KEY, 3, 0.005)
        answers = [member.hear() for member in members]
        assert min(answer["count"] for answer in answers) >= 5, answers
        assert max(answer["longest"] for answer in answers) < 2, answers

    @pytest.mark.slow
    def test_a_forked_child_has_none_of_its_parents_locks(self) -> None:
        parent = self.member()
        fence = parent.ask("acquire", KEY, 10)
        answer = parent.ask("fork", KEY, "other")
        assert answer == {"held": False, "lost": True, "other": 1, "same": None}
        assert parent.ask("look") == {"held": True, "lost": False}
        parent.ask("release")
        assert parent.ask("acquire", KEY, 10) == fence + 1
