"""The plain scripts print what their expected.txt says, and nothing to standard error."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.examples.running import EXAMPLES, SECONDS, copied, environment, run

SCRIPTS = sorted(
    path.parent.name
    for path in EXAMPLES.glob("*/main.py")
    if path.parent.name not in ("07_own_store", "08_clickhouse")
)

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_every_example_is_tested():
    tested = {*SCRIPTS, "05_flask", "06_django", "07_own_store", "08_clickhouse"}
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} == tested
    assert all((EXAMPLES / name / "README.md").is_file() for name in tested)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_what_it_promises(name: str, tmp_path: Path):
    folder = copied(name, tmp_path)
    done = subprocess.run(
        [sys.executable, "-W", "error", "main.py"],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (folder / "expected.txt").read_text()


@pytest.fixture(scope="module")
def own_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Install the store's package as pip does; return its folder and the path to import from."""
    base = tmp_path_factory.mktemp("own_store")
    folder, target = copied("07_own_store", base), base / "installed"
    builds_wheels = find_spec("setuptools") and (
        find_spec("wheel") or find_spec("setuptools.command.bdist_wheel")
    )
    offline = ["--no-index", "--no-build-isolation"] if builds_wheels else []
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *offline]
    run(*pip, "--target", target, folder, cwd=base)
    (folder / "plain_store.py").unlink()  # only what was installed can be imported
    return folder, os.pathsep.join([str(target), str(EXAMPLES.parent)])


def test_a_store_from_another_package_is_chosen_by_its_name(own_store: tuple[Path, str]):
    folder, path = own_store
    said = run(sys.executable, "-W", "error", "main.py", cwd=folder, PYTHONPATH=path)
    assert said == (folder / "expected.txt").read_text()


def test_a_store_from_another_package_passes_the_suite(own_store: tuple[Path, str]):
    folder, path = own_store
    said = run(sys.executable, "-m", "pytest", "-q", cwd=folder, PYTHONPATH=path)
    assert " passed" in said.splitlines()[-1]
