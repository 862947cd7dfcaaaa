"""What the build relies on: the list of packages, the folder's name, the layers."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import alembic
import pytest

_ROOT = Path(__file__).parents[2]


def test_the_listed_packages_are_those_of_the_tree():
    settings = configparser.RawConfigParser()
    settings.read(_ROOT / "setup.cfg")
    listed = settings["options"]["packages"].split()
    found = {
        path.parent.relative_to(_ROOT).as_posix().replace("/", ".")
        for path in (_ROOT / "queue_lib").rglob("__init__.py")
    }
    assert set(listed) == found | {"queue_lib.migrations", "queue_lib.migrations.versions"}
    assert listed == sorted(listed)


def test_the_folder_alembic_is_no_package():
    """As one it would be what `import alembic` finds in the source tree."""
    assert not list((_ROOT / "alembic").rglob("__init__.py"))
    assert Path(alembic.__file__).parent != _ROOT / "alembic"


@pytest.mark.slow
@pytest.mark.processes
def test_dependencies_point_down_only():
    program = Path(sys.executable).parent / "lint-imports"
    if not program.exists():
        pytest.skip("import-linter is not installed: it is in the extra `dev`")
    done = subprocess.run(
        [program, "--no-cache"], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.processes
def test_importing_the_package_loads_no_driver_and_no_test_tool():
    heavy = ["sqlite3", "psycopg", "alembic", "pytest", "hypothesis", "queue_lib.stores.sql"]
    code = f"import sys, queue_lib; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
