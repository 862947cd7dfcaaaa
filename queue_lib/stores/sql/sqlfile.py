"""Read SQL that is kept as SQL: a file of named statements beside the code that runs them.

A statement starts after a line ``-- name: xyz`` and ends before the next one. Lines that hold
only a comment are for the reader and are not sent to the database; ``{q}`` stays as it is, for
`Tables.qualify`.
"""

from __future__ import annotations

import re
from importlib import resources

__all__ = ["load", "parse"]

_NAME = re.compile(r"--\s*name:\s*(\w+)\s*", re.ASCII)


def load(package: str, resource: str = "statements.sql") -> dict[str, str]:
    """Read the named statements of a file inside a package."""
    return parse(resources.files(package).joinpath(resource).read_text(encoding="utf-8"))


def parse(text: str) -> dict[str, str]:
    """Split a text into its named statements.

    Raises:
        ValueError: a name is used twice, or a statement is empty or has no name.
    """
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in text.splitlines():
        stripped = line.strip()
        if heading := _NAME.fullmatch(stripped):
            if heading[1] in found:
                raise ValueError(f"statement {heading[1]!r}: named twice")
            lines = found[heading[1]] = []
        elif stripped and not stripped.startswith("--"):
            if lines is None:
                raise ValueError(f"SQL before the first name: {stripped!r}")
            lines.append(line)
    statements = {name: "\n".join(lines).rstrip("; \n") for name, lines in found.items()}
    if empty := [name for name, sql in statements.items() if not sql]:
        raise ValueError(f"statements without SQL: {', '.join(empty)}")
    return statements
