"""Read a page's code blocks, and write the program that runs them.

A block is fenced, and its first line says what becomes of it:

    ```python            run, in one namespace for the page, in the page's order
    ```sh                run by bash in the page's folder
    ```python worker.py  written to that file (any language)
    ```text              what the block before it must have printed (its main thread)
    ```mermaid           a picture, as is one without a word: left alone

An HTML comment before a block can take it out, or run code that the reader need not see:

    <!-- not run: the reason -->
    <!-- run
    code
    -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PICTURES", "Block", "program", "read_blocks"]

PICTURES = {"", "mermaid"}

_PART = re.compile(
    r"^```(?P<info>[^\n`]*)\n(?P<code>.*?)^```$"
    r"|^<!-- not run: (?P<reason>[^\n]+) -->$"
    r"|^<!-- run\n(?P<hidden>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)

_PROLOGUE = """\
import contextlib, io, subprocess, sys, threading
from pathlib import Path

def check(place, said, expected):
    if said != expected:
        sys.exit(f"{place}: printed\\n{said}\\ninstead of\\n{expected}")

def shell(place, code):
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"{place}: exit code {done.returncode}\\n{done.stdout}")
    return done.stdout

class Said(io.StringIO):
    one_at_a_time = threading.Lock()  # else CPython 3.11 may crash, if its output is unbuffered

    def write(self, text):  # handlers print whenever they run
        if threading.current_thread() is threading.main_thread():
            return super().write(text)
        with self.one_at_a_time:
            return sys.__stdout__.write(text)

def python(place, code):
    with contextlib.redirect_stdout(Said()) as said:
        exec(compile(code, place, "exec"), page)
    return said.getvalue()

page = {"__name__": "__main__"}
"""


@dataclass(frozen=True)
class Block:
    language: str
    file: str
    """Where the block goes; empty: it is run."""
    code: str
    line: int
    """Where its code begins on the page."""
    reason: str = ""
    """Why it is not run; empty: it is."""


def read_blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, hidden ones included."""
    text = page.read_text(encoding="utf-8")
    blocks: list[Block] = []
    reason = ""
    for part in _PART.finditer(text):
        if part["reason"] is not None:
            reason = part["reason"]
            continue
        hidden = part["hidden"] is not None
        code = part["hidden"] if hidden else part["code"]
        language, _, file = ("python" if hidden else part["info"]).partition(" ")
        line = text.count("\n", 0, part.start("hidden" if hidden else "code")) + 1
        blocks.append(Block(language, file, code, line, reason))
        reason = ""
    return blocks


def program(page: Path, blocks: list[Block], replace: dict[str, str]) -> str:
    """Return a Python program that does what the page says, and ends badly if it does not.

    `replace`: what stands on the page, such as the URL of a server, and what it is here.
    """
    lines = [_PROLOGUE, "said = ''"]
    for block in blocks:
        if block.reason or block.language in PICTURES:
            continue
        code = block.code
        for there, here in replace.items():
            code = code.replace(there, here)
        place = f"{page.name}:{block.line}"
        if block.file:
            lines.append(f"Path({block.file!r}).write_text({code!r})")
        elif block.language == "text":
            lines.append(f"check({place!r}, said, {code!r})")
        elif block.language == "sh":
            lines.append(f"said = shell({place!r}, {code!r})")
        elif block.language == "python":
            # Empty lines in front: a traceback then names the line of the page.
            code = "\n" * (block.line - 1) + code
            lines.append(f"said = python({page.name!r}, {code!r})")
        else:
            raise ValueError(f"{place}: nobody knows how to run {block.language!r}")
    return "\n".join(lines)
