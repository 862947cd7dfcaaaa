from __future__ import annotations

import pytest

from queue_lib.stores.sql import sqlfile


def test_statements_are_split_by_their_names_and_lose_their_comments():
    text = """
    -- about the file
    -- name: first
    -- about the first
    select 1,
      2; -- kept: only whole lines go

    -- name: second
    select '{q}';
    """
    assert sqlfile.parse(text) == {
        "first": "    select 1,\n      2; -- kept: only whole lines go",
        "second": "    select '{q}'",
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("-- name: a\nselect 1\n-- name: a\nselect 2", "named twice"),
        ("-- name: a\n-- name: b\nselect 1", "without SQL: a"),
        ("select 1", "before the first name"),
    ],
)
def test_a_malformed_file_is_refused(text: str, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        sqlfile.parse(text)


def test_the_files_of_the_package_are_found():
    assert sqlfile.load("queue_lib.stores.sql.sqlite")["claim"].startswith("update {q}deliveries")
