"""A host application with tables and migrations of its own, in the same database."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from queue_lib import migrate
from queue_lib.lockers.sql import SQLLocker, lock_table
from tests.migrations.inspection import relations


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "queue_orders"  # not ours, for all its prefix
    id: Mapped[int] = mapped_column(primary_key=True)


_ENVIRONMENT = """
from alembic import context
from queue_lib import migrate
from tests.migrations.test_host import Base
import sqlalchemy as sa

engine = sa.create_engine(context.config.attributes["url"], poolclass=sa.NullPool)
with engine.connect() as connection:
    context.configure(
        connection=connection, target_metadata=Base.metadata, include_name=migrate.include_name
    )
    with context.begin_transaction():
        context.run_migrations()
"""

_REVISION = """
import sqlalchemy as sa
from alembic import op
from queue_lib import migrate

revision, down_revision, branch_labels, depends_on = "h1", None, None, None

def upgrade():
    {queue}
    op.create_table("queue_orders", sa.Column("id", sa.Integer(), primary_key=True))

def downgrade():
    op.drop_table("queue_orders")
"""


def _host(folder: Path, url: str, queue: str = "pass") -> Config:
    versions = folder / "versions"
    versions.mkdir()
    (folder / "env.py").write_text(_ENVIRONMENT)
    (folder / "script.py.mako").write_text("")
    (versions / "h1.py").write_text(_REVISION.format(queue=queue))
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.attributes["url"] = url
    return config


def test_each_leaves_the_other_alone(database_url, tmp_path):
    host = _host(tmp_path, database_url)
    migrate.upgrade(database_url)
    command.upgrade(host, "head")
    command.check(host)
    command.check(migrate.alembic_config(database_url))
    command.downgrade(host, "base")
    assert migrate.current(database_url) is not None
    command.upgrade(host, "head")
    migrate.downgrade(database_url, revision="base")
    command.check(host)
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        tables = set(sa.inspect(connection).get_table_names())
        assert tables == {"queue_orders", "alembic_version"}


def _proposals(url, metadata=Base.metadata, **options):
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        return {(change[0], change[1].name) for change in compare_metadata(context, metadata)}


def _create_lock_table(url, name):
    locker = SQLLocker(url, table=name)
    locker.create_table()
    locker.close()


@pytest.mark.parametrize("prefix", ["queue_", "jobs_"])
def test_either_helper_keeps_our_tables_out(database_url, prefix):
    migrate.upgrade(database_url, table_prefix=prefix)
    _create_lock_table(database_url, "queue_locks")
    by_name = partial(migrate.include_name, table_prefix=prefix)
    by_object = partial(migrate.include_object, table_prefix=prefix)
    theirs = {("add_table", "queue_orders")}
    assert ("remove_table", f"{prefix}messages") in _proposals(database_url)
    assert _proposals(database_url, include_name=by_name) == theirs
    assert _proposals(database_url, include_object=by_object) == theirs


def test_a_lock_table_in_the_hosts_own_migrations_is_theirs(database_url):
    _create_lock_table(database_url, "my_locks")
    theirs = {("add_table", "queue_orders")}
    removed = theirs | {("remove_table", "my_locks")}
    for option, helper in (
        ("include_name", migrate.include_name),
        ("include_object", migrate.include_object),
    ):
        assert _proposals(database_url, **{option: helper}) == removed
        named = partial(helper, lock_table="my_locks")
        assert _proposals(database_url, **{option: named}) == theirs
        apart = partial(helper, lock_table=None)
        metadata = sa.MetaData()
        lock_table("my_locks", metadata=metadata)
        assert _proposals(database_url, metadata, **{option: apart}) == set()


def test_the_helpers_know_the_schema(postgres_url):
    migrate.upgrade(postgres_url, schema="messaging")
    by_name = partial(migrate.include_name, schema="messaging")
    by_object = partial(migrate.include_object, schema="messaging")
    theirs = {("add_table", "queue_orders")}
    everything = _proposals(postgres_url, include_schemas=True)
    assert ("remove_table", "queue_messages") in everything
    assert _proposals(postgres_url, include_schemas=True, include_name=by_name) == theirs
    assert _proposals(postgres_url, include_schemas=True, include_object=by_object) == theirs
    assert _proposals(postgres_url, include_schemas=True, include_name=migrate.include_name) == (
        everything
    )


def test_a_revision_of_the_host_may_create_our_tables(database_url, tmp_path):
    host = _host(tmp_path, database_url, queue="migrate.upgrade(op.get_bind())")
    command.upgrade(host, "head")
    assert migrate.current(database_url) is not None
    command.check(host)


@pytest.mark.slow
@pytest.mark.processes
def test_one_history_for_both(sqlite_url, tmp_path):
    _host(tmp_path, sqlite_url)
    (tmp_path / "env.py").write_text(
        _ENVIRONMENT.replace('context.config.attributes["url"]', repr(sqlite_url))
    )
    (tmp_path / "alembic.ini").write_text(
        "[alembic]\n"
        "script_location = %(here)s\n"
        "path_separator = newline\n"
        f"version_locations = %(here)s/versions\n    {migrate.script_location() / 'versions'}\n"
    )
    root = str(Path(__file__).parents[2])
    for arguments in (["upgrade", "heads"], ["check"], ["downgrade", "queue_lib@base"]):
        done = subprocess.run(
            [sys.executable, "-m", "alembic", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": root},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        if arguments[0] == "upgrade":
            with sa.create_engine(sqlite_url, poolclass=sa.NullPool).connect() as connection:
                assert {"queue_messages", "queue_orders"} <= relations(connection)
    with sa.create_engine(sqlite_url, poolclass=sa.NullPool).connect() as connection:
        assert relations(connection) == {"queue_orders", "alembic_version"}
