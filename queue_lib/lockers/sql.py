"""`SQLLocker`: locks in a table of PostgreSQL or SQLite.

A statement is a transaction of its own, and nothing is kept in a session: it works through
PgBouncer in transaction mode, and goes on after a restart of the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from queue_lib.durations import DurationLike, microseconds
from queue_lib.errors import UnsupportedError
from queue_lib.lockers.lease import DEFAULT_TTL, PATIENCE, RESERVATION, Lease, LeaseLocker, Turn
from queue_lib.lockers.sql_databases import LockDatabase, PostgresLocks, SqliteLocks
from queue_lib.locks import DEFAULT_LOCK_TABLE
from queue_lib.urls import read_target

__all__ = ["SQLLocker", "lock_table"]

_CHUNK = 500  # leases renewed by one statement

_Text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")  # byte for byte


class SQLLocker(LeaseLocker):
    """A locker that all processes with access to one database share. Thread-safe.

    On an engine, which is borrowed and never disposed of, or on a URL; either way it works
    through connections of its own. Its table is created when it is first used, unless it exists.
    Acquiring costs one round trip, releasing another. Fences last as long as the table.

    Args:
        target: a PostgreSQL database, or a SQLite file.
        ttl: how long a lock outlives a holder that died; at least 100 ms.
        table: the name of the table.
        schema: the schema of the table; PostgreSQL only.

    Raises:
        InvalidOptionsError: an option is not valid, or the URL cannot be read.
        UnsupportedError: the database is of another kind, or in memory.
    """

    def __init__(
        self,
        target: sa.Engine | sa.URL | str,
        *,
        ttl: DurationLike = DEFAULT_TTL,
        table: str = DEFAULT_LOCK_TABLE,
        schema: str | None = None,
    ) -> None:
        self._sql = _SqlLeases(_open(target), lock_table(table, schema))
        super().__init__(self._sql, ttl)

    def create_table(self) -> None:
        """Create the table unless it exists; any number of processes may do so at once.

        Done by itself at the first use. Call it as a user who may create tables if the one that
        the locker works as may not.
        """
        self._sql.create_table()


def lock_table(
    name: str = DEFAULT_LOCK_TABLE, schema: str | None = None, metadata: sa.MetaData | None = None
) -> sa.Table:
    """Describe the table, in `metadata` or a new one: for an application's own migrations."""
    return sa.Table(
        name,
        sa.MetaData() if metadata is None else metadata,
        sa.Column("name", _Text, primary_key=True),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("owner", _Text, nullable=False),  # empty: free
        sa.Column("held_until", sa.BigInteger, nullable=False),
        sa.Column("next_owner", _Text, nullable=False),  # empty: nobody is next in line
        sa.Column("next_since", sa.BigInteger, nullable=False),  # when that one began to wait
        sa.Column("next_from", sa.BigInteger, nullable=False),  # when nobody else may come first
        sa.Column("next_until", sa.BigInteger, nullable=False),
        schema=schema,
    )


class _SqlLeases:
    """Leases as rows that are never deleted. Instants are microseconds since 1970."""

    def __init__(self, database: LockDatabase, table: sa.Table) -> None:
        if table.schema is not None and isinstance(database, SqliteLocks):
            raise UnsupportedError(f"schema {table.schema!r}: SQLite has none")
        self._database = database
        self._table = table
        self._has_table = False  # once true it stays so; two threads may both find out

        row, now = table.c, database.now
        me = sa.bindparam("me", type_=_Text)
        until = now + sa.bindparam("ttl", type_=sa.BigInteger)
        mine = row.name == sa.bindparam("key", type_=_Text)
        nobody_next = (row.next_owner == "") | (row.next_until < now)
        me_next = row.next_owner == me
        since = now - sa.bindparam("waited", type_=sa.BigInteger)
        may_be_next = me_next | nobody_next | (since < row.next_since)
        my_turn = me_next | nobody_next | (now < row.next_from)
        # Taking what is one's own already: the answer to the first try was lost.
        takes = (row.owner == me) | ((row.held_until < now) & my_turn)
        out_of_line = sa.case((me_next, ""), else_=row.next_owner)
        nobody = {"next_owner": "", "next_since": 0, "next_from": 0, "next_until": 0}

        self._take = (
            sa.update(table)
            .where(mine, takes)
            .values(fence=row.fence + 1, owner=me, held_until=until, next_owner=out_of_line)
            .returning(row.fence)
        )
        self._take_new = (
            database.insert(table)
            .values(
                name=sa.bindparam("key", type_=_Text), fence=1, owner=me, held_until=until, **nobody
            )
            .on_conflict_do_nothing()
            .returning(row.fence)
        )
        lasts = row.next_until > now + microseconds(RESERVATION) // 2
        self._ask = sa.select(takes, me_next & lasts, may_be_next).where(mine)
        self._line_up = (
            sa.update(table)
            .where(mine, may_be_next, database.unhurried)
            .values(
                next_owner=me,
                next_since=since,
                next_from=sa.case((nobody_next, now + microseconds(PATIENCE)), else_=row.next_from),
                next_until=now + microseconds(RESERVATION),
            )
            .returning(row.name)
        )
        self._renew = (
            sa.update(table)
            .where(
                row.name.in_(sa.bindparam("keys", type_=_Text, expanding=True)),
                row.owner.in_(sa.bindparam("owners", type_=_Text, expanding=True)),
            )
            .values(held_until=until)
            .returning(row.owner)
        )
        self._give_back = (
            sa.update(table)
            .where(mine, (row.owner == me) | me_next, database.unhurried)
            .values(
                owner=sa.case((row.owner == me, ""), else_=row.owner),
                held_until=sa.case((row.owner == me, 0), else_=row.held_until),
                next_owner=out_of_line,
            )
        )

    def take(self, lease: Lease, ttl: timedelta) -> int | None:
        parameters = {**_parameters(lease), "ttl": microseconds(ttl)}

        def work(connection: sa.Connection) -> int | None:
            fence: int | None = connection.scalar(self._take, parameters)
            return connection.scalar(self._take_new, parameters) if fence is None else fence

        self._need_table()
        # A fence must not come again, not even after a power cut.
        return self._database.write(work, durable=True)

    def ask(self, lease: Lease, waited: timedelta) -> Turn:
        self._need_table()
        parameters = {**_parameters(lease), "waited": microseconds(waited)}
        found = self._database.read(lambda it: it.execute(self._ask, parameters).first())
        if found is None:
            return Turn.NOW  # the rows were deleted by hand
        takes, is_next, may_be_next = found
        if takes:
            return Turn.NOW
        if may_be_next and not is_next:
            is_next = self._database.write(
                lambda it: it.execute(self._line_up, parameters).first() is not None
            )
        return Turn.NEXT if is_next else Turn.LATER

    def renew(self, leases: Sequence[Lease], ttl: timedelta) -> set[str]:
        held: set[str] = set()
        for start in range(0, len(leases), _CHUNK):
            chunk = leases[start : start + _CHUNK]
            parameters = {
                "keys": [lease.key for lease in chunk],
                "owners": [lease.owner for lease in chunk],
                "ttl": microseconds(ttl),
            }

            def work(
                connection: sa.Connection, parameters: dict[str, object] = parameters
            ) -> Iterable[str]:
                return connection.scalars(self._renew, parameters).all()

            held.update(self._database.write(work))
        return held

    def give_back(self, lease: Lease) -> None:
        self._database.write(lambda it: it.execute(self._give_back, _parameters(lease)))

    def create_table(self) -> None:
        self._database.create(self._table)
        self._has_table = True

    def _need_table(self) -> None:
        if not self._has_table:
            name, schema = self._table.name, self._table.schema
            if not self._database.read(lambda it: sa.inspect(it).has_table(name, schema=schema)):
                self._database.create(self._table)
            self._has_table = True

    def before_fork(self) -> None:
        self._database.before_fork()

    def after_fork(self, *, child: bool) -> None:
        self._database.after_fork(child=child)

    def close(self) -> None:
        self._database.close()


def _parameters(lease: Lease) -> dict[str, object]:
    return {"key": lease.key, "me": lease.owner}


def _open(target: sa.Engine | sa.URL | str) -> LockDatabase:
    target = read_target("target", target, ["postgresql", "sqlite"])
    name = (target.url if isinstance(target, sa.Engine) else target).get_backend_name()
    return PostgresLocks(target) if name == "postgresql" else SqliteLocks(target)
