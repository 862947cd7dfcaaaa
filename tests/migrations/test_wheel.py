"""The wheel carries the migrations, and an application that installed nothing else can run them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import sqlalchemy as sa

from queue_lib import migrate

pytestmark = [pytest.mark.slow, pytest.mark.processes]

_ROOT = Path(__file__).parents[2]
_SOURCES = ("setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a clean copy: a stale build folder would keep deleted revisions."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in _SOURCES:
        if (_ROOT / name).exists():
            shutil.copy(_ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("queue_lib", "alembic"):
        shutil.copytree(_ROOT / name, folder / name, ignore=ignored)
    build = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    _python("-c", build, cwd=folder)
    (built,) = folder.glob("dist/*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel was installed."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-index", "--no-deps", "--target", str(folder)]
    _python("-m", "pip", "install", *options, str(wheel), cwd=folder)
    return folder


def _python(*arguments: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_is_complete(wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    tree = {
        path.relative_to(_ROOT).as_posix()
        for pattern in ("**/*.py", "**/*.sql", "py.typed")
        for path in (_ROOT / "queue_lib").glob(pattern)
    }
    migrations = {
        f"queue_lib/migrations/{path.relative_to(_ROOT / 'alembic').as_posix()}"
        for pattern in ("**/*.py", "*.mako")
        for path in (_ROOT / "alembic").glob(pattern)
    }
    in_package = {name for name in packed if name.startswith("queue_lib/")}
    assert in_package == tree | migrations
    assert {name.split("/")[0].split("-")[0] for name in packed} == {"queue_lib"}


def test_an_application_runs_alembic(site, tmp_path, database_url):
    (tmp_path / "alembic.ini").write_text("[alembic]\nscript_location = queue_lib:migrations\n")
    environment = {"PYTHONPATH": str(site), "QUEUE_LIB_DATABASE_URL": database_url}
    where = _python(
        "-c", "import queue_lib; print(queue_lib.__file__)", cwd=tmp_path, **environment
    )
    assert Path(where.strip()).parent == site / "queue_lib"
    _python("-m", "alembic", "upgrade", "head", cwd=tmp_path, **environment)
    _python("-m", "alembic", "check", cwd=tmp_path, **environment)
    assert "ql0001" in _python("-m", "alembic", "history", cwd=tmp_path, **environment)
    assert migrate.current(database_url) is not None
    _python("-m", "alembic", "downgrade", "base", cwd=tmp_path, **environment)
    assert migrate.current(database_url) is None


def test_an_application_runs_the_command(site, tmp_path, sqlite_url):
    printed = _python("-m", "queue_lib", "migrate", sqlite_url, cwd=tmp_path, PYTHONPATH=str(site))
    assert printed.startswith("the tables are at revision ql")
    assert migrate.current(sqlite_url) is not None


def test_the_source_tree_runs_alembic(sqlite_url):
    arguments = ["-m", "alembic", "-x", f"url={sqlite_url}", "-x", "prefix=jobs_"]
    _python(*arguments, "upgrade", "head", cwd=_ROOT)
    _python(*arguments, "check", cwd=_ROOT)
    assert "ql0001" in _python(*arguments, "current", cwd=_ROOT)
    engine = sa.create_engine(sqlite_url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        assert "jobs_lib_version" in sa.inspect(connection).get_table_names()


def test_there_is_no_default_database(tmp_path, monkeypatch):
    monkeypatch.delenv("QUEUE_LIB_DATABASE_URL", raising=False)
    done = subprocess.run(
        [sys.executable, "-m", "alembic", "upgrade", "head"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "QUEUE_LIB_DATABASE_URL" in done.stderr + done.stdout
