"""Fixtures that run a test on each database."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of a new, empty database of each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url
