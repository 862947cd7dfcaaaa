"""The table of docs/reliability.md: each test that it names exists, and each test here is in it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.docs.test_pages import anchors

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_ROW = re.compile(r"^\| ([A-Z]\d+) \| [^|]+ \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
_CASES = re.compile(r"^[PT]\d+(, [PT]\d+)*\. ")


def rows() -> list[tuple[str, str]]:
    """Return the number and the tests of each case."""
    found = _ROW.findall((DOCS / "reliability.md").read_text(encoding="utf-8"))
    assert found
    return found


@cache
def functions_of(path: Path) -> dict[str, str]:
    """Return the docstrings of the test functions and methods of a module, by their names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name: ast.get_docstring(node) or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_each_case_has_one_row():
    numbers = [number for number, _ in rows()]
    assert sorted(set(numbers)) == sorted(numbers)


def test_each_row_names_tests_that_exist_or_says_why_there_is_none():
    reasons = anchors(DOCS / "operations.md")
    missing = []
    for number, cell in rows():
        named = re.findall(r"`([^`:]+)::([^`]+)`", cell)
        missing += [
            f"{number}: {path}::{test}"
            for path, test in named
            if not (ROOT / path).is_file() or test not in functions_of(ROOT / path)
        ]
        if not named:
            link = re.fullmatch(r"none: see \[.+\]\(operations\.md#(.+)\)", cell)
            assert link is not None, f"{number}: {cell}"
            assert link[1] in reasons
    assert missing == []


def test_each_test_of_this_folder_is_in_the_rows_of_the_cases_that_it_is_for():
    in_rows = dict(rows())
    astray = []
    for path in Path(__file__).parent.glob("test_*.py"):
        if path == Path(__file__):
            continue
        for name, text in functions_of(path).items():
            cases = _CASES.match(text)
            assert cases is not None, f"{path.name}::{name} does not say for which case it is"
            place = f"`{path.relative_to(ROOT)}::{name}`"
            astray += [
                f"{case}: {place}"
                for case in re.findall(r"[PT]\d+", cases[0])
                if place not in in_rows.get(case, "")
            ]
    assert astray == []
