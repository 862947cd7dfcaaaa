"""Publishing: one a call and many, from one thread and from many, and what wake-ups cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

from benchmarks.bench import Bench
from benchmarks.databases.postgres import PostgresSite
from benchmarks.figures import Figure
from benchmarks.work import TOPIC, alternate, open_queue, register, timed, together
from queue_lib import Message, StoreQueue
from queue_lib.stores.sql.postgres.listen import CHANNEL

__all__ = ["notifications", "publish", "publish_together"]

_PAYLOAD = b"x" * 1024
_QUIET = 0.3  # seconds after which no notification is under way


def publish(bench: Bench, batch: int, groups: int = 1) -> Iterator[Figure]:
    """Messages a second, `batch` in a call, by one thread."""
    calls = bench.size.publishes if batch == 1 else bench.size.batches
    with (
        bench.site() as site,
        closing(site.floor()) as floor,
        open_queue(store := site.store()) as queue,
    ):
        for number in range(groups):
            register(store, f"g{number}")
        rates = alternate(
            bench.size.rounds,
            lambda: calls * batch / timed(lambda: _publish(queue, calls, batch)),
            lambda: calls * batch / timed(lambda: floor.publish(batch, _PAYLOAD), calls),
        )
    yield Figure(f"publish {batch:,}" + f" to {groups} groups" * (groups > 1), "/s", *rates)


def publish_together(bench: Bench) -> Iterator[Figure]:
    """Messages a second, one a call, by many threads: against as many connections of the floor.

    Where there is one writer at a time, against one thread: what sharing a commit brings.
    """
    threads, calls = bench.size.threads, bench.size.publishes // 4
    with ExitStack() as stack:
        site = stack.enter_context(bench.site())
        queue = stack.enter_context(open_queue(store := site.store()))
        register(store)

        def ours(count: int = threads) -> float:
            return count * calls / together(count, lambda _: _publish(queue, calls))

        if bench.kind == "postgres":
            floors = [stack.enter_context(closing(site.floor())) for _ in range(threads)]

            def publish_bare(number: int) -> None:
                for _ in range(calls):
                    floors[number].publish(1, _PAYLOAD)

            def theirs() -> float:
                return threads * calls / together(threads, publish_bare)
        else:

            def theirs() -> float:
                return ours(1)

        rate, reference = alternate(bench.size.rounds, ours, theirs)
    against = "floor" if bench.kind == "postgres" else "one thread"
    yield Figure(f"publish 1, {threads} threads", "/s", rate, reference, against)


def notifications(bench: Bench) -> Iterator[Figure]:
    """Messages a second by many publishers that wake others, against publishers that do not.

    Somebody listens all the time. The publishers are spread over several queues, as over several
    processes: each folds its own wake-ups only.
    """
    size = bench.size
    calls = size.publishes // 4
    heard = 0
    with ExitStack() as stack:
        site = stack.enter_context(bench.site())
        assert isinstance(site, PostgresSite)
        listener = stack.enter_context(closing(site.floor()))
        listener.listen(CHANNEL)

        def opened(*, wake: bool) -> list[StoreQueue]:
            stores = [site.store(wake=wake) for _ in range(size.instances)]
            register(stores[0])
            return [stack.enter_context(open_queue(store)) for store in stores]

        def rate_of(queues: list[StoreQueue]) -> float:
            nonlocal heard
            took = together(
                size.publishers, lambda number: _publish(queues[number % len(queues)], calls)
            )
            heard += listener.heard(_QUIET)
            return size.publishers * calls / took

        loud, quiet = opened(wake=True), opened(wake=False)
        rate, reference = alternate(size.rounds, lambda: rate_of(loud), lambda: rate_of(quiet))
    published = size.rounds * size.publishers * calls
    yield Figure(
        f"publish 1, {size.publishers} publishers that notify", "/s", rate, reference, "no NOTIFY",
        {"notifications_per_message": round(heard / published, 3)},
    )  # fmt: skip


def _publish(queue: StoreQueue, calls: int, batch: int = 1) -> None:
    for _ in range(calls):
        queue.publish(*(Message(TOPIC, _PAYLOAD) for _ in range(batch)))
