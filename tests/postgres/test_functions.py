"""The functions are where the tables are, and their absence is reported as such."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from queue_lib.errors import SchemaError, UnsupportedError
from queue_lib.stores.schema import build_tables
from queue_lib.stores.sql.postgres import drop_functions, install_functions
from tests.postgres.lab import Lab, message


def test_missing_functions_are_a_schema_error(lab: Lab) -> None:
    store = lab.store()
    store.ping()
    with lab.host.begin() as connection:
        drop_functions(connection, lab.tables)
    with pytest.raises(SchemaError, match="migrate"):
        store.ping()
    with pytest.raises(SchemaError, match=r"migrate URL` \(function .* does not exist\)$"):
        store.append([message("a")])
    with lab.host.begin() as connection:
        install_functions(connection, lab.tables)
        install_functions(connection, lab.tables)
    store.ping()


def test_functions_stay_in_their_schema(postgres_url: str) -> None:
    """Installed by the search path; called from a session with another one."""
    host = sa.create_engine(postgres_url)
    with host.begin() as connection:
        connection.exec_driver_sql("""CREATE SCHEMA "it's my-""Schema" """)
        connection.exec_driver_sql("""SET LOCAL search_path TO "it's my-""Schema" """)
        build_tables().metadata.create_all(connection)
        install_functions(connection, build_tables())
    url = host.url.update_query_dict({"options": """-csearch_path="it's\\ my-""Schema",public"""})
    lab = Lab(sa.create_engine(url), build_tables())
    lab.do_everything(lab.store(url))
    with lab.transaction() as connection:
        connection.exec_driver_sql("SET LOCAL search_path TO pg_temp")
        qualified = """ "it's my-""Schema".queue_append_v1 """
        connection.exec_driver_sql(
            f"SELECT {qualified}('{{t}}', null, '{{i}}', '{{k}}', '{{x}}', null, '{{0}}', '{{0}}', "
            "'{0}', null, true, null)"
        )
        connection.commit()
    assert lab.ask("SELECT id FROM {q}messages WHERE id = 'i'") == "i"
    lab.close()
    lab.host.dispose()
    host.dispose()


def test_a_search_path_without_a_schema(postgres_url: str) -> None:
    host = sa.create_engine(postgres_url)
    with host.begin() as connection:
        connection.exec_driver_sql("SET LOCAL search_path TO ''")
        with pytest.raises(UnsupportedError, match="search path"):
            install_functions(connection, build_tables())
    host.dispose()
