"""The command line for operators: create, upgrade and drop the tables; look at a group.

Every failure is one line on standard error and exit code 1; 2 for a call that can never work. The
password in a database's URL is never printed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from urllib.parse import quote, quote_plus

import sqlalchemy as sa

from queue_lib.errors import InvalidOptionsError, InvalidRequestError, QueueError, StoreError
from queue_lib.migrate import current, downgrade, parse_url, upgrade
from queue_lib.names import validate_name
from queue_lib.registry import open_database_store
from queue_lib.stores.schema import DEFAULT_PREFIX
from queue_lib.urls import missing_file

__all__ = ["main"]

_URL_VARIABLE = "QUEUE_LIB_DATABASE_URL"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code. `arguments`: by default those of the process."""
    given = _parser().parse_args(arguments)
    url: sa.URL | None = None
    try:
        url = _url(given.url)
        given.run(url, given)
    except (QueueError, sa.exc.SQLAlchemyError, ImportError) as error:
        print(f"queue_lib: {_one_line(error, url)}", file=sys.stderr)
        return 2 if isinstance(error, InvalidRequestError) else 1
    return 0


def _migrate(url: sa.URL, given: argparse.Namespace) -> None:
    where = {"schema": given.schema, "table_prefix": given.table_prefix}
    upgrade(url, revision=given.revision, **where)
    print(f"the tables are at revision {current(url, **where)}")


def _downgrade(url: sa.URL, given: argparse.Namespace) -> None:
    where = {"schema": given.schema, "table_prefix": given.table_prefix}
    downgrade(url, revision=given.revision, **where)
    revision = current(url, **where)
    print(f"the tables are at revision {revision}" if revision else "the tables are dropped")


def _stats(url: sa.URL, given: argparse.Namespace) -> None:
    validate_name("topic", given.topic)
    validate_name("group", given.group)
    where = {"schema": given.schema, "table_prefix": given.table_prefix}
    store = open_database_store(url, **where, wake=False)
    try:
        if (path := missing_file(url)) is not None:
            raise StoreError(f"{path}: there is no such file")
        if not store.has_group(given.topic, given.group):
            raise StoreError(f"topic {given.topic}: has no group {given.group}")
        stats = store.group_stats(given.topic, given.group)
    finally:
        store.close()
    for field in fields(stats):
        value = getattr(stats, field.name)
        print(f"{field.name:<17}{'-' if value is None else value}")


def _parser() -> argparse.ArgumentParser:
    database = argparse.ArgumentParser(add_help=False)
    database.add_argument("--schema", help="schema of the tables; on ClickHouse their database")
    database.add_argument(
        "--table-prefix", default=DEFAULT_PREFIX, help="what the tables' names begin with"
    )
    database.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help=f"the database, such as sqlite:///app.db; by default {_URL_VARIABLE}, which keeps a "
        "password out of the process list",
    )
    parser = argparse.ArgumentParser(prog="python -m queue_lib", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("migrate", parents=[database], help="create or upgrade tables")
    command.add_argument("--revision", default="head", help="how far; by default all the way")
    command.set_defaults(run=_migrate)

    command = commands.add_parser("downgrade", parents=[database], help="take migrations back")
    command.add_argument("--revision", required=True, help="how far; base drops all messages")
    command.set_defaults(run=_downgrade)

    command = commands.add_parser("stats", parents=[database], help="count a group's deliveries")
    command.add_argument("topic", metavar="TOPIC")
    command.add_argument("group", metavar="GROUP")
    command.set_defaults(run=_stats)
    return parser


def _url(given: str | None) -> sa.URL:
    text = given or os.environ.get(_URL_VARIABLE)
    if not text:
        raise InvalidOptionsError(f"no database: give its URL, or set {_URL_VARIABLE}")
    return parse_url(text)


def _one_line(error: BaseException, url: sa.URL | None) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    password = url.password if url else None
    if password:
        for form in (password, quote(password, safe=""), quote_plus(password)):
            text = text.replace(form, "***")
    return text
