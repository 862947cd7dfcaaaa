"""The store: what the rest of the library calls, and how messages become rows and back."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import sqlalchemy as sa

from queue_lib.durations import microseconds
from queue_lib.errors import InvalidOptionsError, QueueClosedError
from queue_lib.locks import DistributedLocker
from queue_lib.message import HEADER_DEAD_LETTER_DELIVERY_ID, Message
from queue_lib.names import delivery_id
from queue_lib.options import StartFrom
from queue_lib.stores.base import (
    ClaimBatch,
    Claimed,
    ClaimRequest,
    GroupStats,
    PurgePolicy,
    Stats,
)
from queue_lib.stores.clickhouse import settle, statements
from queue_lib.stores.clickhouse.claim import Claim, Leased
from queue_lib.stores.clickhouse.clock import ServerClock
from queue_lib.stores.clickhouse.cluster_statements import statements_for
from queue_lib.stores.clickhouse.codec import decode_payload, encode_payload
from queue_lib.stores.clickhouse.database import Database
from queue_lib.stores.clickhouse.group import Group, Rows, load_group
from queue_lib.stores.clickhouse.publish import AppendRow, Publisher
from queue_lib.stores.clickhouse.schema import ClickHouseTables
from queue_lib.stores.clickhouse.turns import Turn, Turns
from queue_lib.stores.clickhouse.upkeep import Upkeep

__all__ = ["ClickHouseStore"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ClickHouseStore:
    """A `Store` on ClickHouse. Thread-safe; survives a fork (see `ForkAware`).

    `locker` is shared by all instances. Without one the store can publish, one process at a time;
    it cannot consume. `clock`: tests only, in place of the server's.
    """

    def __init__(
        self,
        database: Database,
        tables: ClickHouseTables,
        locker: DistributedLocker | None = None,
        *,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._database = database
        self._sql = statements_for(tables)
        now = self._sql.fill(statements.NOW)
        server_clock = ServerClock(lambda: int(database.select(now)[0][0]), clock)
        self._turns = Turns(database, self._sql, server_clock, locker, f"{tables.raw_qualifier}:")
        self._publisher = Publisher(self._turns)
        self._upkeep = Upkeep(self._turns)
        self._groups: set[tuple[str, str]] = set()  # are registered; that never ends
        self._news: set[tuple[str, str]] = set()  # of priorities published by this process
        self._closed = threading.Event()

    @property
    def migration_target(self) -> sa.Engine | sa.URL:
        """What `queue_lib.migrate.upgrade` has to be given for these tables."""
        return self._database.migration_target

    # -- publish ---------------------------------------------------------------------------

    def append(self, messages: Sequence[Message]) -> None:
        """See `Store.append`."""
        self._check_open()
        rows = [_to_row(message) for message in messages]
        if not rows:
            return
        self._publisher.append(rows)
        topics = {row.topic for row in rows if row.prio}
        if topics:
            self._news |= {known for known in set(self._groups) if known[0] in topics}

    # -- consume ---------------------------------------------------------------------------

    def can_consume(self) -> None:
        """See `ConsumeChecker.can_consume`."""
        self._turns.can_consume()

    def ensure_group(self, topic: str, group: str, start_from: StartFrom) -> None:
        """See `Store.ensure_group`."""
        self._check_open()
        self._turns.can_consume()
        if self._is_registered(topic, group):
            return

        def register(turn: Turn[Group]) -> None:
            if load_group(turn, topic, group) is None:
                start = 0
                if start_from != StartFrom.EARLIEST:
                    ((start,),) = turn.select(statements.LAST_SEQ, topic=topic)
                now = turn.clock.latest()
                new = Group(topic, group, start, start + 1, start, registered=now, checked=now)
                rows = Rows(turn, new)
                rows.group()
                rows.insert()

        # Nothing is published or purged meanwhile; publishers always come first.
        self._turns.publish(lambda _: self._turns.group(topic, group, register))
        self._groups.add((topic, group))

    def claim(self, request: ClaimRequest) -> ClaimBatch:
        """See `Store.claim`."""
        self._check_open()
        self._turns.can_consume()
        name = request.topic, request.group
        if request.max < 1 or not self._is_registered(*name):
            return ClaimBatch()
        claim = Claim(request, has_news=name in self._news)
        self._news.discard(name)
        leased = self._turns.group(*name, claim.run)
        return ClaimBatch(
            [_to_claim(request, claim.token, pair) for pair in leased], next_due=claim.next_due
        )

    def ack(self, claims: Sequence[Claimed]) -> list[str]:
        """See `Store.ack`."""
        return self._each_group(claims, settle.acknowledge)

    def kill(self, claim: Claimed, last_error: str) -> bool:
        """See `Store.kill`."""
        return bool(self._each_group([claim], settle.bury(_stored_text(last_error))))

    def retry(self, claim: Claimed, backoff: timedelta, last_error: str) -> bool:
        """See `Store.retry`."""
        delay = max(microseconds(backoff), 0)
        return bool(self._each_group([claim], settle.requeue(delay, _stored_text(last_error), 1)))

    def release(self, claims: Sequence[Claimed]) -> None:
        """See `Store.release`."""
        self._each_group(claims, settle.requeue(0, None, 0))

    def extend(self, claims: Sequence[Claimed], lease: timedelta) -> list[str]:
        """See `Store.extend`."""
        return self._each_group(claims, settle.extend(microseconds(lease)), alive=True)

    # -- upkeep ----------------------------------------------------------------------------

    def purge(self, policy: PurgePolicy, batch: int) -> int:
        """See `Store.purge`."""
        self._check_open()
        if batch < 1:
            raise InvalidOptionsError(f"batch {batch!r}: must be at least 1")
        return self._upkeep.purge(
            microseconds(policy.dead_retention), microseconds(policy.acked_retention), batch
        )

    def stats(self, topic: str, group: str) -> Stats:
        """See `Store.stats`."""
        self._check_open()
        return self._upkeep.stats(topic, group)

    def has_group(self, topic: str, group: str) -> bool:
        """Say whether a group is registered."""
        self._check_open()
        return self._is_registered(topic, group)

    def group_stats(self, topic: str, group: str) -> GroupStats:
        """See `DetailedStats.group_stats`."""
        self._check_open()
        return self._upkeep.group_stats(topic, group)

    def ping(self) -> None:
        """See `Store.ping`."""
        self._check_open()
        self._database.select(self._sql.fill(statements.PING))

    def before_fork(self) -> None:
        """See `ForkAware.before_fork`: nothing to do, the child begins anew."""

    def after_fork(self, *, child: bool) -> None:
        """See `ForkAware.after_fork`."""
        if child:
            self._database.after_fork()
            self._turns.reset()
            self._publisher.reset()

    def close(self) -> None:
        """See `Store.close`."""
        self._closed.set()
        self._database.close()

    # -- inside ----------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise QueueClosedError("the store is closed")

    def _is_registered(self, topic: str, group: str) -> bool:
        if (topic, group) not in self._groups:
            query = self._sql.fill(statements.GROUP, topic=topic, group=group)
            if not self._database.select(query):
                return False
            self._groups.add((topic, group))
            self._news.add((topic, group))
        return True

    def _each_group(
        self, claims: Sequence[Claimed], work: settle.Change, *, alive: bool = False
    ) -> list[str]:
        """Do `work` in a turn of each group; return the delivery ids that were held."""
        self._check_open()
        groups: dict[tuple[str, str], list[Claimed]] = {}
        for claim in claims:
            if claim.ref is not None:  # else no claim of ours made it
                groups.setdefault((claim.ref[0], claim.group), []).append(claim)
        ids: list[str] = []
        for (topic, name), members in sorted(groups.items()):
            keys = [_held(claim) for claim in members]
            held = self._turns.group(
                topic,
                name,
                partial(settle.change, topic=topic, name=name, claims=keys, work=work, alive=alive),
            )
            ids += [
                claim.delivery_id
                for claim, (seq, token) in zip(members, keys, strict=True)
                if token and seq in held
            ]
        return ids


def _held(claim: Claimed) -> settle.Held:
    """Split a claim's token: that of the call, and the seq, so that each delivery has its own."""
    seq: int = claim.ref[1]
    token, _, of = claim.claim_token.rpartition(".")
    return seq, token if of == str(seq) else ""


def _to_row(message: Message) -> AppendRow:
    headers = message.headers
    return AppendRow(
        message.topic,
        message.id,
        message.key,
        message.priority,
        _instant(message.deliver_at),
        _instant(message.published_at),
        int(headers is not None and HEADER_DEAD_LETTER_DELIVERY_ID in headers),
        # ASCII only: escapes every NUL and control character, the same text on every backend.
        json.dumps(headers, separators=(",", ":")) if headers else "",
        encode_payload(bytes(message.payload)),
    )


def _to_claim(request: ClaimRequest, token: str, leased: Leased) -> Claimed:
    lease, row = leased
    message = Message(request.topic, key=lease.key, priority=lease.prio)
    if row is not None:  # else damaged by hand
        message = Message(
            request.topic,
            decode_payload(row.payload),
            row.key,
            row.id,
            json.loads(row.headers) if row.headers else None,
            _EPOCH + timedelta(microseconds=row.due) if row.due else None,
            _EPOCH + timedelta(microseconds=row.published),
            row.prio,
        )
    return Claimed(
        delivery_id(message.id, request.group),
        f"{token}.{lease.seq}",
        request.group,
        lease.attempts + 1,
        message,
        lease.error,
        (request.topic, lease.seq),
    )


def _instant(value: datetime | None) -> int:
    return 0 if value is None else microseconds(value - _EPOCH)


def _stored_text(text: str) -> str:
    """Make an error text storable: no NUL, no lone surrogate."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
