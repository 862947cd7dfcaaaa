"""`RedisLocker`: locks in Redis or Valkey, through redis-py (the extra ``redis``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from queue_lib.durations import DurationLike, microseconds
from queue_lib.errors import StoreError, StoreUnavailableError
from queue_lib.lockers.lease import DEFAULT_TTL, PATIENCE, RESERVATION, Lease, LeaseLocker, Turn

if TYPE_CHECKING:
    import redis

__all__ = ["DEFAULT_PREFIX", "RedisLocker"]

DEFAULT_PREFIX = "queue_lib:lock:"
"""What the names of the keys in Redis begin with."""

_CHUNK = 500  # leases renewed by one script

# A lock is one hash that never expires: it keeps the fence, and a server that evicts what has a
# time to live does not end a lease early. Microseconds since 1970 fit into Lua's numbers.
_READ = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local row = redis.call('HMGET', KEYS[1],
    'owner', 'held_until', 'next_owner', 'next_since', 'next_from', 'next_until')
local owner, held_until = row[1] or '', tonumber(row[2] or 0)
local next_owner, next_since = row[3] or '', tonumber(row[4] or 0)
local next_from, next_until = tonumber(row[5] or 0), tonumber(row[6] or 0)
local me = ARGV[1]
local nobody_next = next_owner == '' or next_until < now
local my_turn = next_owner == me or nobody_next or now < next_from
local takes = owner == me or (held_until < now and my_turn)
"""

_TAKE = (
    _READ
    + """
if not takes then return 0 end
if next_owner == me then next_owner = '' end
redis.call('HSET', KEYS[1],
    'owner', me, 'held_until', now + ARGV[2], 'next_owner', next_owner)
return redis.call('HINCRBY', KEYS[1], 'fence', 1)
"""
)

_ASK = (
    _READ
    + """
if takes then return 'NOW' end
local since = now - ARGV[2]
if not (nobody_next or next_owner == me or since < next_since) then return 'LATER' end
if nobody_next then next_from = now + ARGV[3] end
redis.call('HSET', KEYS[1], 'next_owner', me, 'next_since', since,
    'next_from', next_from, 'next_until', now + ARGV[4])
return 'NEXT'
"""
)

_RENEW = """
local time = redis.call('TIME')
local held_until = time[1] * 1000000 + time[2] + ARGV[#ARGV]
local held = {}
for i, key in ipairs(KEYS) do
    if redis.call('HGET', key, 'owner') == ARGV[i] then
        redis.call('HSET', key, 'held_until', held_until)
        held[#held + 1] = i
    end
end
return held
"""

_GIVE_BACK = (
    _READ
    + """
if owner == me then redis.call('HSET', KEYS[1], 'owner', '', 'held_until', 0) end
if next_owner == me then redis.call('HSET', KEYS[1], 'next_owner', '') end
"""
)


class RedisLocker(LeaseLocker):
    """A locker that all processes with access to one Redis share. Thread-safe.

    Its locks are as safe as that Redis: one that loses what it acknowledged, in a crash without
    ``appendfsync always`` or a failover to a replica, may grant a lock twice and repeat a fence.

    Args:
        target: a redis-py client, which is borrowed and never closed, or a URL.
        ttl: how long a lock outlives a holder that died; at least 100 ms.
        prefix: what the names of the keys begin with. Keys are never removed: they hold fences.

    Raises:
        InvalidOptionsError: the time to live is not valid.
    """

    def __init__(
        self,
        target: redis.Redis | str,
        *,
        ttl: DurationLike = DEFAULT_TTL,
        prefix: str = DEFAULT_PREFIX,
    ) -> None:
        super().__init__(_RedisLeases(target, prefix), ttl)


class _RedisLeases:
    def __init__(self, target: redis.Redis | str, prefix: str) -> None:
        import redis

        self._errors = redis.exceptions
        self._is_ours = isinstance(target, str)
        self._client = (
            redis.Redis.from_url(target, socket_timeout=5, socket_connect_timeout=5)
            if isinstance(target, str)
            else target
        )
        self._prefix = prefix
        self._take, self._ask, self._renew, self._give_back = (
            self._client.register_script(text) for text in (_TAKE, _ASK, _RENEW, _GIVE_BACK)
        )

    def take(self, lease: Lease, ttl: timedelta) -> int | None:
        fence: int = self._run(self._take, [lease.key], [lease.owner, microseconds(ttl)])
        return fence or None

    def ask(self, lease: Lease, waited: timedelta) -> Turn:
        durations = [microseconds(it) for it in (waited, PATIENCE, RESERVATION)]
        turn = self._run(self._ask, [lease.key], [lease.owner, *durations])
        return Turn[turn if isinstance(turn, str) else turn.decode()]

    def renew(self, leases: Sequence[Lease], ttl: timedelta) -> set[str]:
        held: set[str] = set()
        for start in range(0, len(leases), _CHUNK):
            chunk = leases[start : start + _CHUNK]
            owners = [lease.owner for lease in chunk]
            keys = [lease.key for lease in chunk]
            places = self._run(self._renew, keys, [*owners, microseconds(ttl)])
            held.update(owners[place - 1] for place in places)
        return held

    def give_back(self, lease: Lease) -> None:
        self._run(self._give_back, [lease.key], [lease.owner])

    def _run(self, script: Callable[..., Any], keys: list[str], arguments: list[Any]) -> Any:
        with self._translated():
            return script(keys=[self._prefix + key for key in keys], args=arguments)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        errors = self._errors
        try:
            yield
        except (errors.AuthenticationError, errors.AuthorizationError) as error:
            raise StoreError(str(error)) from error
        except (
            errors.ConnectionError,
            errors.TimeoutError,
            errors.ReadOnlyError,
            errors.MasterDownError,
            errors.TryAgainError,
        ) as error:
            raise StoreUnavailableError(str(error)) from error
        except errors.RedisError as error:
            raise StoreError(str(error)) from error

    def before_fork(self) -> None:
        """Do nothing: redis-py's connections know their process."""

    def after_fork(self, *, child: bool) -> None:
        """Do nothing."""

    def close(self) -> None:
        if self._is_ours:
            self._client.close()
