"""Run an example as its reader would: in a process of its own, in a copy of its folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["EXAMPLES", "SECONDS", "copied", "environment", "run"]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

SECONDS = 60.0
"""How long an example may take; never reached when all is well."""


def environment(home: Path, **variables: str) -> dict[str, str]:
    """Return the variables of an example's process: ours, less what could change its output."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "PYTHONWARNINGS", "TTY_COMPATIBLE")
    }
    ours["PYTHONPATH"] = str(ROOT)  # also where the package is not installed
    ours["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{ours.get('PATH', '')}"
    ours["HOME"] = ours["XDG_RUNTIME_DIR"] = str(home)  # gunicorn keeps a socket there
    return ours | variables


def copied(name: str, folder: Path) -> Path:
    """Copy an example into `folder`, so that what it writes does not stay in the tree."""
    ignore = shutil.ignore_patterns("__pycache__", "*.db*")
    return Path(shutil.copytree(EXAMPLES / name, folder / name, ignore=ignore))


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Run a command to its good end; return what it wrote to its standard output."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment(cwd, **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
