"""What only `RedisLocker` has: a client that may be the host's, and a server that crashes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from queue_lib import StoreError, StoreUnavailableError
from queue_lib.lockers.redis import RedisLocker
from tests.lockers.conftest import RedisServer, new_redis_server

if TYPE_CHECKING:
    import redis

AT_ONCE = timedelta(0)
LONG = timedelta(seconds=20)


@pytest.fixture(params=[False, True], ids=["bytes", "text"])
def client(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[redis.Redis]:
    """The host's, with either kind of answers."""
    import redis

    with redis.Redis.from_url(redis_server.url(), decode_responses=request.param) as client:
        yield client


def test_a_hosts_client_is_borrowed_whatever_its_answers_are(
    client: redis.Redis, redis_prefix: str
):
    with (
        RedisLocker(client, ttl=0.5, prefix=redis_prefix) as one,
        RedisLocker(client, ttl=0.5, prefix=redis_prefix) as other,
    ):
        handle = one.acquire("k", AT_ONCE)
        with pytest.raises(StoreUnavailableError, match="still held"):
            other.acquire("k", timedelta(seconds=1))
        assert handle.is_held()
        handle.release()
        assert other.acquire("k", LONG).fence == 2
    assert client.ping()


def test_a_lock_is_one_key_that_stays_and_keeps_the_fence(client: redis.Redis, redis_prefix: str):
    with RedisLocker(client, prefix=redis_prefix) as locker:
        locker.acquire("k", AT_ONCE).release()
    keys = client.keys(f"{redis_prefix}*")
    assert [key if isinstance(key, str) else key.decode() for key in keys] == [f"{redis_prefix}k"]
    assert client.ttl(f"{redis_prefix}k") == -1
    with RedisLocker(client, prefix=redis_prefix) as locker:
        assert locker.acquire("k", AT_ONCE).fence == 2


def test_what_is_in_the_way_is_an_error_at_once(client: redis.Redis, redis_prefix: str):
    client.set(f"{redis_prefix}k", "not a lock")
    with RedisLocker(client, prefix=redis_prefix) as locker:
        with pytest.raises(StoreError, match="WRONGTYPE") as caught:
            locker.acquire("k", LONG)
        assert not isinstance(caught.value, StoreUnavailableError)


@pytest.mark.slow
def test_a_held_lock_survives_a_crash_of_a_durable_server(tmp_path: Path):
    server = new_redis_server(tmp_path)
    with RedisLocker(server.url(), ttl=6) as locker:
        handle = locker.acquire("k", AT_ONCE)
        server.kill()
        with pytest.raises(StoreUnavailableError):
            locker.acquire("other", AT_ONCE)
        server.start()
        before, deadline = handle.held_until, time.monotonic() + LONG.total_seconds()
        while handle.held_until == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert handle.is_held()
        handle.release()
        assert locker.acquire("k", LONG).fence == 2
    server.kill()
