"""The code blocks of README.md and docs/ run, and every link between pages leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import program, read_blocks
from tests.examples.running import SECONDS, environment

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [*PAGES, *sorted((ROOT / "examples").rglob("README.md"))]

POSTGRES = "postgresql+psycopg://app:secret@localhost/app"
"""The server of the pages, in whose place the tests use theirs."""

MOST_LEFT_OUT = 6
"""Blocks that are not run, over all pages."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path, request: pytest.FixtureRequest):
    blocks = read_blocks(page)
    if not blocks:
        pytest.skip("no code on this page")
    replace = {}
    if any(POSTGRES in block.code for block in blocks):
        replace[POSTGRES] = request.getfixturevalue("postgres_url")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program(page, blocks, replace)],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_few_blocks_are_left_out():
    left_out = [
        f"{name(page)}:{block.line}: {block.reason}"
        for page in PAGES
        for block in read_blocks(page)
        if block.reason
    ]
    assert len(left_out) <= MOST_LEFT_OUT, "\n".join(left_out)


@pytest.mark.parametrize("page", LINKED, ids=name)
def test_links_lead_somewhere(page: Path):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        if file.startswith(("http:", "https:")):
            continue
        there = (page.parent / file).resolve() if file else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
