"""`KeeperMapLocker`: locks in ClickHouse itself, in a table of the engine KeeperMap.

Such a table lives in the cluster's Keeper: one for all servers, with a version for each row. In
strict mode an INSERT fails if the row exists, and an UPDATE fails if somebody changed a row after
its condition was read. So of several that see the same free lock, one gets it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa

from queue_lib.durations import DurationLike, microseconds
from queue_lib.errors import (
    InvalidOptionsError,
    SchemaError,
    StoreUnavailableError,
    shown,
)
from queue_lib.lockers.lease import DEFAULT_TTL, PATIENCE, RESERVATION, Lease, LeaseLocker, Turn
from queue_lib.locks import DEFAULT_LOCK_TABLE
from queue_lib.stores.clickhouse.codec import literal
from queue_lib.stores.clickhouse.database import Database
from queue_lib.urls import read_target

__all__ = ["KeeperMapLocker"]


_NAME = re.compile(r"[a-z_][a-z0-9_]{0,60}", re.ASCII)
_CHUNK = 100  # leases renewed by one statement: a query may have 256 KiB
_TRIES = 5  # of what fails when any of its rows changes

_STRICT = "SETTINGS keeper_map_strict_mode = 1"
_NOW = "toUnixTimestamp64Micro(now64(6))"

# Two rows for a key, apart so that whoever lines up does not get into the holder's way:
# `lock …` with its fence, and `next …` with the instant from which nobody else may come first.
_CREATE = """
CREATE TABLE IF NOT EXISTS {table}
    (name String, number Int64, owner String, until Int64, since Int64)
ENGINE = KeeperMap({path}) PRIMARY KEY name
"""

_READ = f"""
SELECT name, number, owner, until, since, {_NOW} FROM {{table}} WHERE name IN ({{names}})
"""  # noqa: S608 - the table's name is checked

_TAKE_FIRST = f"""
INSERT INTO {{table}} {_STRICT} SELECT {{lock}}, 1, {{me}}, {_NOW} + {{ttl}}, 0
"""

# What was read is the condition: a holder who has renewed his lease meanwhile keeps it. Long
# conditions, and many columns, would take a mutation many times as long as these.
_TAKE = f"""
ALTER TABLE {{table}} UPDATE number = number + 1, owner = {{me}}, until = {{held_until}}
WHERE name = {{lock}} AND number = {{number}} AND owner = {{owner}} AND until = {{until}} {_STRICT}
"""

_TAKEN = "SELECT number FROM {table} WHERE name = {lock} AND owner = {me}"

# Of two who line up at once the later one is next; the other finds out when he asks again.
_LINE_UP = "INSERT INTO {table} SELECT {next}, {number}, {me}, {until}, {since}"

_LEAVE_LINE = "DELETE FROM {table} WHERE name = {next} AND owner = {me}"

_RENEW = f"""
ALTER TABLE {{table}} UPDATE until = {_NOW} + {{ttl}}
WHERE name IN ({{locks}}) AND owner IN ({{owners}}) {_STRICT}
"""

_HELD = "SELECT owner FROM {table} WHERE name IN ({locks}) AND owner IN ({owners})"

_GIVE_BACK = f"""
ALTER TABLE {{table}} UPDATE owner = '', until = 0
WHERE name = {{lock}} AND owner = {{me}} {_STRICT}
"""


class KeeperMapLocker(LeaseLocker):
    """A locker that all processes with access to one ClickHouse cluster share. Thread-safe.

    The servers need a Keeper and the setting ``keeper_map_path_prefix``, and clocks that agree:
    an instant that one server wrote is compared on another. The table is created at the first
    use unless it exists; on every server of the cluster with the same `path`, or not at all.

    Args:
        target: an engine of clickhouse-sqlalchemy, which is borrowed, or a URL.
        ttl: how long a lock outlives a holder that died; at least 100 ms.
        table: the name of the table.
        path: where the locks are in the Keeper; by default under the names of the database and
            the table.

    Raises:
        InvalidOptionsError: an option is not valid, or the URL cannot be read.
        UnsupportedError: the database is not ClickHouse.
    """

    def __init__(
        self,
        target: sa.Engine | sa.URL | str,
        *,
        ttl: DurationLike = DEFAULT_TTL,
        table: str = DEFAULT_LOCK_TABLE,
        path: str | None = None,
    ) -> None:
        super().__init__(
            _KeeperMapLeases(read_target("target", target, ["clickhouse"]), table, path), ttl
        )


class _Row(NamedTuple):
    number: int
    owner: str
    until: int
    since: int


class _State(NamedTuple):
    """What is stored for a key, and when it was read on the server's clock."""

    lock: _Row | None
    next: _Row | None
    now: int

    @property
    def behind(self) -> _Row | None:
        """Who is next in line."""
        return None if self.next is None or self.next.until < self.now else self.next

    def takes(self, me: str) -> bool:
        """Say whether `me` may take the lock."""
        if self.lock is None or self.lock.owner == me:
            return True
        behind = self.behind
        is_turn = behind is None or behind.owner == me or self.now < behind.number
        return self.lock.until < self.now and is_turn


class _KeeperMapLeases:
    def __init__(self, target: sa.Engine | sa.URL, table: str, path: str | None) -> None:
        if _NAME.fullmatch(table) is None:
            raise InvalidOptionsError(f"table {shown(table)}: must be a plain lower-case name")
        self._database = Database(target)
        self._table = table
        self._path = path or f"/queue_lib/{self._database.name or 'default'}/{table}"
        self._has_table = False  # once true it stays so; two threads may both find out
        self._in_line: set[str] = set()  # owners that were next, and may be still

    def take(self, lease: Lease, ttl: timedelta) -> int | None:
        values = _values(lease)
        state = self._read(lease)
        if not state.takes(lease.owner):
            return None
        if state.lock is None:
            self._command(_TAKE_FIRST, **values, ttl=microseconds(ttl))
            return 1
        until = state.now + microseconds(ttl)
        self._command(_TAKE, **values, **state.lock._asdict(), held_until=until)
        taken = self._database.select(self._fill(_TAKEN, **values))
        if not taken:
            return None
        self._leave_line(lease)
        return int(taken[0][0])

    def ask(self, lease: Lease, waited: timedelta) -> Turn:
        state = self._read(lease)
        if state.takes(lease.owner):
            return Turn.NOW
        behind, since = state.behind, state.now - microseconds(waited)
        if behind is not None and behind.owner != lease.owner and behind.since <= since:
            return Turn.LATER
        lasts = microseconds(RESERVATION)
        number = behind.number if behind else state.now + microseconds(PATIENCE)
        renews = behind is not None and behind.owner == lease.owner
        if behind is None or not renews or behind.until < state.now + lasts // 2:
            self._in_line.add(lease.owner)
            place = {"number": number, "until": state.now + lasts, "since": since}
            self._command(_LINE_UP, **_values(lease), **place)
        return Turn.NEXT

    def renew(self, leases: Sequence[Lease], ttl: timedelta) -> set[str]:
        held: set[str] = set()
        for start in range(0, len(leases), _CHUNK):
            chunk = leases[start : start + _CHUNK]
            values = {
                "locks": [_values(lease)["lock"] for lease in chunk],
                "owners": [lease.owner for lease in chunk],
                "ttl": microseconds(ttl),
            }
            self._insist(_RENEW, **values)
            found = self._database.select(self._fill(_HELD, **values))
            held.update(owner for (owner,) in found)
        return held

    def give_back(self, lease: Lease) -> None:
        self._insist(_GIVE_BACK, **_values(lease))
        self._leave_line(lease)

    def _leave_line(self, lease: Lease) -> None:
        if lease.owner in self._in_line:
            self._insist(_LEAVE_LINE, **_values(lease))
            self._in_line.discard(lease.owner)

    def _read(self, lease: Lease) -> _State:
        if not self._has_table:
            self._command(_CREATE, path=self._path)
            self._has_table = True
        values = _values(lease)
        names = [values["lock"], values["next"]]
        try:
            found = self._database.select(self._fill(_READ, names=names))
        except SchemaError as error:  # dropped, as it must be when the Keeper has forgotten it
            self._has_table = False
            raise StoreUnavailableError(f"table {self._table}: is missing") from error
        rows = {name: _Row(*fields) for name, *fields, _ in found}
        return _State(rows.get(names[0]), rows.get(names[1]), found[0][-1] if found else 0)

    def _insist(self, template: str, **values: Any) -> None:
        """Run a statement again if somebody changed one of its rows meanwhile."""
        for remaining in reversed(range(_TRIES)):
            try:
                return self._command(template, **values)
            except StoreUnavailableError:
                if not remaining:
                    raise
        return None

    def _command(self, template: str, **values: Any) -> None:
        self._database.command(self._fill(template, **values))

    def _fill(self, template: str, **values: Any) -> str:
        written = {name: literal(value) for name, value in values.items()}
        return template.format(table=self._table, **written)

    def before_fork(self) -> None:
        """Do nothing: the child lets go of the parent's sockets."""

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._database.after_fork()

    def close(self) -> None:
        self._database.close()


def _values(lease: Lease) -> dict[str, str]:
    return {"lock": f"lock {lease.key}", "next": f"next {lease.key}", "me": lease.owner}
