"""The pytest plugin behind the conformance suite: list it in your conftest's `pytest_plugins`.

It registers the suite's markers, skips what a store does not claim to be capable of, and lets
pytest rewrite the suite's assertions, so that a failure shows the values.
"""

from __future__ import annotations

import pytest

__all__ = ["pytest_configure", "pytest_runtest_setup"]

pytest.register_assert_rewrite(
    "queue_lib.testing.conformance",
    "queue_lib.testing.conformance_lockers",
    "queue_lib.testing.machine",
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    config.addinivalue_line(
        "markers", "requires(*capabilities): skip unless the store under test has them all"
    )
    config.addinivalue_line("markers", "slow: takes longer than half a second")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose class lacks a capability that the test asks for."""
    case = item.getparent(pytest.Class)
    if case is None:
        return
    needed = {name for mark in item.iter_markers("requires") for name in mark.args}
    missing = needed - getattr(case.obj, "capabilities", frozenset())
    if missing:
        pytest.skip(f"{case.name} lacks {', '.join(sorted(missing))}")
