"""Reading what names a database: the same checks and errors wherever a URL or an engine is given.

An error tells the name of a database and of a driver, and never another part of a URL: where
something in it was not quoted, that may be a part of its password.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa

from queue_lib.errors import InvalidOptionsError, UnsupportedError

__all__ = ["DATABASES", "missing_file", "read_target", "read_url"]

DATABASES = ("sqlite", "postgresql", "clickhouse")
"""What can hold the tables, as SQLAlchemy names it."""

_SYNCHRONOUS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "clickhouse": "clickhouse+native",
}


def read_url(field: str, given: object, databases: Sequence[str] = DATABASES) -> sa.URL:
    """Read the URL of one of `databases`.

    Raises:
        InvalidOptionsError: it is none, or its driver cannot take its options.
        UnsupportedError: it is of another database, or its driver is missing or asynchronous.
    """
    if not isinstance(given, str | sa.URL):
        raise InvalidOptionsError(f"{field} {type(given).__name__}: must be a database URL")
    try:
        url = sa.make_url(given)
    except (sa.exc.ArgumentError, ValueError):
        raise InvalidOptionsError(
            f"{field}: is not a database URL; are special characters in it quoted?"
        ) from None
    if any("\0" in part for part in _parts(url)):
        raise InvalidOptionsError(f"{field}: holds a NUL character")
    _check_database(field, url.get_backend_name(), databases)
    if url.get_backend_name() in DATABASES:
        _check_driver(field, url)
    return url


def read_target(
    field: str, given: object, databases: Sequence[str] = DATABASES
) -> sa.URL | sa.Engine:
    """Read the URL of one of `databases`, or check that an engine is of one.

    Raises what `read_url` does.
    """
    if isinstance(given, sa.Engine):
        _check_database(field, given.dialect.name, databases)
        if given.dialect.is_async:
            raise UnsupportedError(
                f"{field}: is an asynchronous engine, and the queue works with threads; "
                "make one with create_engine"
            )
        return given
    if not isinstance(given, str | sa.URL):
        raise InvalidOptionsError(f"{field} {type(given).__name__}: must be a URL or an Engine")
    return read_url(field, given, databases)


def missing_file(url: sa.URL) -> str | None:
    """Return the path of a SQLite file that is not there: connecting would make an empty one."""
    path = url.database
    if url.get_backend_name() != "sqlite" or path in (None, "", ":memory:"):
        return None
    if path.startswith("file:") or Path(path).exists():  # a URI says by itself what may be made
        return None
    return path


def _parts(url: sa.URL) -> list[str]:
    """Return the texts that a URL is made of."""
    texts = [url.username, url.host, url.database, *url.query]
    texts.append(None if url.password is None else str(url.password))
    for value in url.query.values():
        texts += [value] if isinstance(value, str) else value
    return [text for text in texts if text]


def _check_database(field: str, name: str, databases: Sequence[str]) -> None:
    if name not in databases:
        hint = "; write postgresql://" if name == "postgres" else ""
        raise UnsupportedError(
            f"{field}: database {name!r} is none of {', '.join(databases)}{hint}"
        )


def _check_driver(field: str, url: sa.URL) -> None:
    try:
        dialect = url.get_dialect()
    except sa.exc.NoSuchModuleError:
        raise UnsupportedError(
            f"{field}: no driver {url.drivername!r} is installed; "
            f"{_SYNCHRONOUS[url.get_backend_name()]!r} is the usual one"
        ) from None
    if dialect.is_async:
        raise UnsupportedError(
            f"{field}: {url.drivername!r} is asynchronous, and the queue works with threads; "
            f"name a synchronous driver, such as {_SYNCHRONOUS[url.get_backend_name()]!r}"
        )
    try:
        dialect().create_connect_args(url)  # what `create_engine` would trip over
    except (sa.exc.ArgumentError, ValueError, TypeError) as error:
        told = "" if url.username or url.password else f": {' '.join(str(error).split())}"
        raise InvalidOptionsError(f"{field}: its driver cannot take this URL{told}") from None
