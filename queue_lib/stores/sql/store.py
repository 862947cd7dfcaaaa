"""The store on SQLAlchemy: the operations and their order, once, for every SQL database.

What differs between databases is in their `Statements` and `Database`. This module turns
messages into rows and back, keeps durations on the database's clock, groups claims by consumer
group, and turns the driver's errors into ours.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session

from queue_lib.durations import microseconds
from queue_lib.errors import (
    InvalidOptionsError,
    QueueClosedError,
    QueueError,
    UnsupportedError,
)
from queue_lib.message import HEADER_DEAD_LETTER_DELIVERY_ID, Message
from queue_lib.names import delivery_id
from queue_lib.options import StartFrom
from queue_lib.stores.base import (
    ClaimBatch,
    Claimed,
    ClaimRequest,
    GroupStats,
    Peek,
    PurgePolicy,
    Stats,
)
from queue_lib.stores.sql.dialect import (
    AppendRow,
    Borrowed,
    ClaimRow,
    Connection,
    Database,
    Held,
    Statements,
)
from queue_lib.stores.sql.errors import translate

__all__ = ["SqlStore", "StoreClock"]

P = ParamSpec("P")
T = TypeVar("T")

StoreClock = Callable[[], int]
"""Tests only: the instant, in µs since 1970, that takes the place of the database's clock."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SqlStore:
    """A `Store` in a SQL database. Thread-safe; survives a fork (see `ForkAware`)."""

    def __init__(
        self, database: Database, statements: Statements, *, clock: StoreClock | None = None
    ) -> None:
        self._database = database
        self._sql = statements
        self._clock = clock
        self._groups: dict[tuple[str, str], int] = {}  # ids never change; racing writers agree
        self._warm: set[int] = set()  # groups whose last claim found something: skip the peek
        self._closed = threading.Event()

    @property
    def migration_target(self) -> sa.Engine | sa.URL:
        """What `queue_lib.migrate.upgrade` has to be given for these tables."""
        return self._database.migration_target

    # -- publish ---------------------------------------------------------------------------

    def append(self, messages: Sequence[Message]) -> None:
        """See `Store.append`."""
        if not messages:
            return
        rows = [_to_row(message) for message in messages]
        sender = self._database.sender(borrowed=False)
        self._run(self._database.write_durably, self._sql.append, rows, self._now(), sender=sender)
        topics = {row.topic for row in rows}
        if not sender:
            self._database.published(sorted(topics))
        if self._sql.peeks:  # our own subscriptions are about to claim
            self._warm |= {
                group for (topic, _), group in tuple(self._groups.items()) if topic in topics
            }

    def append_in(self, connection: Any, messages: Sequence[Message]) -> None:
        """See `TransactionalStore.append_in`."""
        self._check_open()
        rows = [_to_row(message) for message in messages]
        with self._translated():
            theirs = _connection_of(connection)
        with self._translated(Borrowed(theirs)):
            ours = self._database.borrow(theirs)
            sender = self._database.sender(borrowed=True)
            if rows:
                self._sql.append(ours, rows, self._now(), borrowed=True, sender=sender)

    # -- consume ---------------------------------------------------------------------------

    def ensure_group(self, topic: str, group: str, start_from: StartFrom) -> None:
        """See `Store.ensure_group`."""
        if self._group_id(topic, group) is None:
            earliest = start_from == StartFrom.EARLIEST
            self._run(
                self._database.write_durably,
                self._sql.ensure_group, topic, group, earliest, self._now(),
            )  # fmt: skip

    def claim(self, request: ClaimRequest) -> ClaimBatch:
        """See `Store.claim`."""
        group_id = self._group_id(request.topic, request.group)
        if group_id is None or request.max < 1:
            return ClaimBatch()
        if self._sql.peeks and group_id not in self._warm:
            ((found, next_due),) = self._peek([group_id])
            if not found:
                return ClaimBatch(next_due=_duration(next_due))
        return self._claim(group_id, request, [])[1]

    def peek(self, groups: Sequence[tuple[str, str]]) -> list[Peek]:
        """See `Peeker.peek`."""
        ids = [self._group_id(*name) for name in groups]
        known = [group_id for group_id in ids if group_id is not None]
        found = dict(zip(known, self._peek(known) if known else [], strict=True))
        nothing = False, None
        answers = [nothing if id_ is None else found[id_] for id_ in ids]
        return [Peek(may_claim, _duration(next_due)) for may_claim, next_due in answers]

    def _peek(self, group_ids: Sequence[int]) -> list[tuple[bool, int | None]]:
        return self._run(self._database.read, self._sql.peek, group_ids, self._now())

    def ack_and_claim(
        self, claims: Sequence[Claimed], request: ClaimRequest
    ) -> tuple[list[str], ClaimBatch]:
        """See `AckingClaimer.ack_and_claim`."""
        group_id = self._group_id(request.topic, request.group)
        if group_id is None or request.max < 1 or any(_group_of(it) != group_id for it in claims):
            return self.ack(claims), self.claim(request)
        held, batch = self._claim(group_id, request, [_held(claim) for claim in claims])
        return [claim.delivery_id for claim in claims if claim.ref[1] in held], batch

    def _claim(
        self, group_id: int, request: ClaimRequest, settled: Sequence[Held]
    ) -> tuple[set[int], ClaimBatch]:
        rows, next_due, held = self._run(
            self._database.write,
            self._sql.claim,
            group_id, settled, request.max, microseconds(request.lease), request.max_in_flight,
            self._now(),
        )  # fmt: skip
        (self._warm.add if rows else self._warm.discard)(group_id)
        claims = [_to_claim(row, group_id, request) for row in rows]
        return held, ClaimBatch(claims, next_due=_duration(next_due))

    def ack(self, claims: Sequence[Claimed]) -> list[str]:
        """See `Store.ack`."""
        return self._each_group(claims, self._sql.settle, None)

    def kill(self, claim: Claimed, last_error: str) -> bool:
        """See `Store.kill`."""
        return bool(self._each_group([claim], self._sql.settle, _stored_text(last_error)))

    def retry(self, claim: Claimed, backoff: timedelta, last_error: str) -> bool:
        """See `Store.retry`."""
        delay = max(microseconds(backoff), 0)
        text = _stored_text(last_error)
        return bool(self._each_group([claim], self._sql.requeue, delay, text, 1))

    def release(self, claims: Sequence[Claimed]) -> None:
        """See `Store.release`."""
        self._each_group(claims, self._sql.requeue, 0, None, 0)

    def extend(self, claims: Sequence[Claimed], lease: timedelta) -> list[str]:
        """See `Store.extend`."""
        return self._each_group(claims, self._sql.extend, microseconds(lease))

    # -- upkeep ----------------------------------------------------------------------------

    def purge(self, policy: PurgePolicy, batch: int) -> int:
        """See `Store.purge`."""
        if batch < 1:
            raise InvalidOptionsError(f"batch {batch!r}: must be at least 1")
        dead = microseconds(policy.dead_retention)
        acked = microseconds(policy.acked_retention)
        write = self._database.write
        gone = self._run(write, self._sql.purge_dead, dead, batch, self._now())
        return gone + self._run(write, self._sql.purge_messages, acked, dead, batch, self._now())

    def stats(self, topic: str, group: str) -> Stats:
        """See `Store.stats`."""
        counts = self.group_stats(topic, group)
        pending = counts.ready + counts.scheduled + counts.retrying + counts.behind_key
        return Stats(pending=pending, leased=counts.leased, dead=counts.dead)

    def has_group(self, topic: str, group: str) -> bool:
        """Say whether a group is registered."""
        return self._group_id(topic, group) is not None

    def group_stats(self, topic: str, group: str) -> GroupStats:
        """See `DetailedStats.group_stats`."""
        group_id = self._group_id(topic, group)
        if group_id is None:
            return GroupStats()
        counts = self._run(self._database.read, self._sql.count, group_id, self._now())
        return GroupStats(*counts[:6], _duration(counts.oldest_ready_age))

    def ping(self) -> None:
        """See `Store.ping`."""
        self._run(self._database.read, self._sql.check)

    def listen(self, wake: Callable[[str], None], stop: threading.Event) -> None:
        """See `WakeSource.listen`."""
        with self._translated():
            self._database.listen(wake, stop)

    def before_fork(self) -> None:
        """See `ForkAware.before_fork`."""
        self._database.before_fork()

    def after_fork(self, *, child: bool) -> None:
        """See `ForkAware.after_fork`."""
        self._database.after_fork(child=child)

    def close(self) -> None:
        """See `Store.close`."""
        self._closed.set()
        self._database.close()

    # -- inside ----------------------------------------------------------------------------

    def _now(self) -> int | None:
        return None if self._clock is None else self._clock()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise QueueClosedError("the store is closed")

    def _group_id(self, topic: str, group: str) -> int | None:
        known = self._groups.get((topic, group))
        if known is None:
            known = self._run(self._database.read, self._sql.find_group, topic, group)
            if known is not None:
                self._groups[topic, group] = known
        return known

    def _each_group(
        self,
        claims: Sequence[Claimed],
        statement: Callable[..., set[int]],
        *arguments: Any,
    ) -> list[str]:
        """Run a fenced statement once for each group; return the delivery ids that were held."""
        held_ids: list[str] = []
        for group_id, members in _by_group(claims):
            keys = [_held(claim) for claim in members]
            held = self._run(
                self._database.write, statement, group_id, keys, *arguments, self._now()
            )
            held_ids += [claim.delivery_id for claim in members if claim.ref[1] in held]
        return held_ids

    def _run(
        self,
        transaction: Callable[..., T],
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        self._check_open()
        with self._translated():
            return transaction(work, *args, **kwargs)

    def _translated(self, borrowed: Borrowed | None = None) -> _Translated:
        return _Translated(self._database, borrowed)


class _Translated:
    """Turn what the driver raises into the errors of this library."""

    __slots__ = ("_borrowed", "_database")

    def __init__(self, database: Database, borrowed: Borrowed | None) -> None:
        self._database = database
        self._borrowed = borrowed

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, QueueError) or not isinstance(error, Exception):
            return
        if not isinstance(error, sa.exc.SQLAlchemyError | OSError | self._database.driver_error):
            return
        raise translate(error, self._database.classify(error, self._borrowed)) from error


def _connection_of(given: Any) -> sa.Connection:
    if isinstance(given, scoped_session):
        given = given()
    if isinstance(given, Session):
        try:
            return given.connection()
        except sa.exc.UnboundExecutionError:
            raise UnsupportedError(
                f"connection {type(given).__name__}: must be bound to an engine"
            ) from None
    if isinstance(given, sa.Connection):
        return given
    raise UnsupportedError(
        f"connection {type(given).__name__}: must be an SQLAlchemy Connection or Session"
    )


def _by_group(claims: Sequence[Claimed]) -> Iterator[tuple[int, list[Claimed]]]:
    """Group claims; those that no claim of ours made have no row and hold nothing."""
    groups: dict[int, list[Claimed]] = {}
    for claim in claims:
        if claim.ref is not None:
            groups.setdefault(claim.ref[0], []).append(claim)
    yield from sorted(groups.items())


def _held(claim: Claimed) -> Held:
    return Held(claim.ref[1], claim.claim_token, claim.ref[2])


def _group_of(claim: Claimed) -> int | None:
    return None if claim.ref is None else claim.ref[0]


def _to_row(message: Message) -> AppendRow:
    headers = message.headers or None
    return AppendRow(
        message.topic,
        message.id,
        message.key or None,
        bytes(message.payload),
        # ASCII only: escapes every NUL and control character, the same text on every backend.
        None if headers is None else json.dumps(headers, separators=(",", ":")),
        message.priority,
        _instant(message.deliver_at),
        _instant(message.published_at),
        headers is not None and HEADER_DEAD_LETTER_DELIVERY_ID in headers,
    )


def _to_claim(row: ClaimRow, group_id: int, request: ClaimRequest) -> Claimed:
    (seq, token, attempts, error, id_, key, payload, headers, priority, deliver, published) = row
    message = Message(
        request.topic,
        bytes(payload),
        key or "",
        id_ or "",
        None if headers is None else json.loads(headers),
        None if not deliver else _EPOCH + timedelta(microseconds=deliver),
        _EPOCH + timedelta(microseconds=published),
        priority,
    )
    return Claimed(
        delivery_id(message.id, request.group),
        token,
        request.group,
        attempts + 1,
        message,
        error or "",
        (group_id, seq, key),
    )


def _instant(value: datetime | None) -> int:
    return 0 if value is None else microseconds(value - _EPOCH)


def _duration(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(microseconds=max(value, 0))


def _stored_text(text: str) -> str:
    """Make an error text storable everywhere: no NUL, no lone surrogate."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
