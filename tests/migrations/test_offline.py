"""``--sql``: the script that a database administrator runs by hand."""

from __future__ import annotations

import io

import pytest
import sqlalchemy as sa
from alembic import command

from queue_lib import migrate
from queue_lib.stores.schema import build_tables
from tests.migrations.inspection import contents, expected_contents, relations


@pytest.mark.parametrize("schema", [None, "messaging"])
def test_the_script_does_what_an_upgrade_does(postgres_url, schema):
    engine = sa.create_engine(postgres_url, poolclass=sa.NullPool)
    tables = build_tables(schema=schema)
    with engine.begin() as connection:
        expected = expected_contents(connection, tables)

    script = _script(command.upgrade, postgres_url, "head", schema)
    assert script.index("pg_advisory_xact_lock") < script.index("CREATE TABLE")
    _run(engine, script)
    with engine.connect() as connection:
        assert contents(connection, tables) == expected
    assert migrate.current(engine, schema=schema) is not None

    _run(engine, _script(command.downgrade, postgres_url, "head:base", schema))
    with engine.connect() as connection:
        assert relations(connection, schema) == set()


def _script(run, url, revision, schema):
    config = migrate.alembic_config(url, schema=schema)
    config.output_buffer = io.StringIO()
    run(config, revision, sql=True)
    return config.output_buffer.getvalue()


def _run(engine, script):
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        driver.autocommit = True
        driver.execute(script.encode())  # without parameters: several statements, no %
