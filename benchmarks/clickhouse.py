"""`python -m benchmarks.clickhouse [--smoke] [--drivers native,http] [--only TEXT]`.

The store on ClickHouse. The floor of a case is the same statements with the same rows through the
same connection, without the store: what its locks, memory, objects and proofs cost. Store and
floor alternate.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

import sqlalchemy as sa

from queue_lib import ClaimRequest, Message, ProcessLocker, StartFrom, migrate
from queue_lib.stores.clickhouse import statements
from queue_lib.stores.clickhouse.codec import literal
from queue_lib.stores.clickhouse.open import open_clickhouse_store
from queue_lib.stores.clickhouse.schema import (
    FENCE_BITS,
    LEASED,
    LIVE_COLUMNS,
    MESSAGE_COLUMNS,
    build_clickhouse_tables,
)
from queue_lib.stores.clickhouse.statements import Statements
from tests.clickhouse_server import ClickHouseServer

GROUP = "bench"
LEASE = timedelta(seconds=600)
PAYLOAD = b"x" * 1024
RATE = 100  # publishes a second, where parts are counted
HIGH = 1 << (FENCE_BITS + 40)  # above every fence


class Bench:
    """The cases on one database."""

    def __init__(self, url: sa.URL, smoke: bool) -> None:
        self.store = open_clickhouse_store(url, ProcessLocker())
        self.database = self.store._database  # the floor uses its connections
        self.sql = Statements(build_clickhouse_tables(url.database))
        self.smoke = smoke
        self.rounds = 2 if smoke else 10
        self._numbers = iter(range(1 << 40))

    def cases(self, seconds: float) -> Iterator[tuple[str, Callable[[], str]]]:
        """Name every case, and what measures it."""
        yield "publish 1,000 a call", partial(self.publish, 1000)
        for batch in (32, 64, 256):
            yield f"drain in batches of {batch}", partial(self.drain, batch)
        for threads in (1, 16, 64):
            yield f"publish one by one, {threads} threads", partial(self.publish_together, threads)
        yield f"parts under {RATE} publishes a second", partial(self.parts, seconds)
        for depth in (1000,) if self.smoke else (10_000, 100_000, 1_000_000):
            yield f"claim of 32 at {depth:,}", partial(self.claim_at, depth)
        depth, finished = (1000, 2000) if self.smoke else (1_000_000, 2_000_000)
        name = f"claim of 32 at {depth:,}, behind {finished:,} finished"
        yield name, partial(self.claim_at, depth, finished)

    def publish(self, count: int) -> str:
        self.register("publish")

        def floor() -> None:
            ids = [uuid4().hex for _ in range(count)]
            for part in (ids[:500], ids[500:]):
                self.database.select(self.sql.fill(statements.IDS, ids=part))
            rows = [
                ("floor", HIGH + next(self._numbers), id_, "", 0, 0, 0, int(time.time() * 1e6), 0,
                 "", "u" + PAYLOAD.decode())
                for id_ in ids
            ]  # fmt: skip
            self.database.insert(self.sql.messages, MESSAGE_COLUMNS, rows)

        return self.against(lambda: self.append("publish", count), floor, count)

    def drain(self, batch: int) -> str:
        topic = f"drain-{batch}"
        self.register(topic)
        self.append(topic, batch * (self.rounds + 2))
        held = self.claim(topic, batch)

        def through_store() -> None:
            nonlocal held
            self.store.ack(held)
            held = self.claim(topic, batch)

        def floor() -> None:
            seqs = [next(self._numbers) for _ in range(batch)]
            for version in (0, 1):
                rows = [
                    ("floor", GROUP, LEASED, "", 0, seq, HIGH + version, version, "", 0, 0, 0, "t",
                     0, "", 0, 0, 0)
                    for seq in seqs
                ]  # fmt: skip
                self.database.insert(self.sql.live, LIVE_COLUMNS, rows)
                if not version:
                    self.database.select(
                        self.sql.fill(
                            statements.READ_BACK, topic="floor", group=GROUP, seqs=seqs,
                            token="t", name="g:floor:bench", cursor=0, log=0,  # noqa: S106
                        )
                    )  # fmt: skip

        name = f"g:floor:{GROUP}"
        self.database.command(self.sql.fill(statements.RAISE, name=name, fence=1, locker=1))
        return self.against(through_store, floor, batch)

    def publish_together(self, threads: int) -> str:
        self.register("together")
        end = time.perf_counter() + (0.5 if self.smoke else 4)
        counts = [0] * threads

        def work(number: int) -> None:
            while time.perf_counter() < end:
                self.append("together", 1)
                counts[number] += 1

        began = time.perf_counter()
        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return f"{sum(counts) / (time.perf_counter() - began):,.0f}/s"

    def parts(self, seconds: float) -> str:
        """Publish one by one, consume, and count parts meanwhile; late publishes count as slow."""
        self.register("parts")
        began, taken, callers = time.perf_counter(), list[float](), 8

        def publish(caller: int) -> None:
            for number in range(caller, int(RATE * seconds), callers):
                due = began + number / RATE
                time.sleep(max(due - time.perf_counter(), 0))
                self.append("parts", 1)
                taken.append(time.perf_counter() - due)

        def consume() -> None:
            while any(publisher.is_alive() for publisher in publishers):
                if not self.store.ack(self.claim("parts", 32)):
                    time.sleep(0.02)

        publishers = [threading.Thread(target=publish, args=(number,)) for number in range(callers)]
        threads = [*publishers, threading.Thread(target=consume)]
        for thread in threads:
            thread.start()
        most: Counter[str] = Counter()
        while any(thread.is_alive() for thread in threads):
            for table, parts in self.database.select(
                "SELECT table, count() FROM system.parts WHERE active "
                f"AND database = {literal(self.database.name)} AND match(table, 'live|messages') "
                "GROUP BY table"
            ):
                most[table] = max(most[table], parts)
            time.sleep(0.1)
        rate = len(taken) / (time.perf_counter() - began)
        cuts = statistics.quantiles(taken, n=100)
        counts = ", ".join(f"{table} {most[table]}" for table in sorted(most))
        return (
            f"at most {counts} active; {rate:,.0f}/s, "
            f"p50 {1000 * cuts[49]:.1f} ms, p99 {1000 * cuts[98]:.1f} ms"
        )

    def claim_at(self, depth: int, finished: int = 0) -> str:
        topic = f"depth-{depth}-{finished}"
        self.register(topic)
        for _ in range(0, finished, 50_000):
            self.append(topic, min(finished, 50_000))
            while done := self.claim(topic, 10_000):
                self.store.ack(done)
        for _ in range(0, depth, 50_000):
            self.append(topic, min(depth, 50_000))
        began = time.perf_counter()
        held = self.claim(topic, 32)
        cold, claims, acks = time.perf_counter() - began, [], []
        for _ in range(self.rounds * 2):
            began = time.perf_counter()
            self.store.ack(held)
            acked = time.perf_counter()
            held = self.claim(topic, 32)
            acks.append(acked - began)
            claims.append(time.perf_counter() - acked)
        claim, ack = (1000 * statistics.median(times) for times in (claims, acks))
        return f"{claim:.1f} ms, the first {1000 * cold:.1f} ms; ack {ack:.1f} ms"

    def against(self, store: Callable[[], None], floor: Callable[[], None], count: int) -> str:
        times: dict[Callable[[], None], list[float]] = {store: [], floor: []}
        for _ in range(self.rounds):
            for work, taken in times.items():
                began = time.perf_counter()
                work()
                taken.append(time.perf_counter() - began)
        ours, theirs = (count / statistics.median(taken) for taken in times.values())
        return f"{ours:,.0f}/s, floor {theirs:,.0f}/s, ratio {ours / theirs:.2f}"

    def register(self, topic: str) -> None:
        self.store.ensure_group(topic, GROUP, StartFrom.LATEST)

    def append(self, topic: str, count: int) -> None:
        now = datetime.now(UTC)
        self.store.append(
            [Message(topic, PAYLOAD, id=uuid4().hex, published_at=now) for _ in range(count)]
        )

    def claim(self, topic: str, limit: int) -> list:  # type: ignore[type-arg]
        return self.store.claim(ClaimRequest(topic, GROUP, "bench", limit, LEASE))


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clickhouse", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: does it still run?")
    parser.add_argument("--drivers", default="native,http")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--seconds", type=float, default=30, help="of the case `parts`")
    options = parser.parse_args()
    print("| driver | case | measured |\n|---|---|---|")
    with ClickHouseServer() as server:
        for driver in options.drivers.split(","):
            url = sa.make_url(server.url(server.create_database(), driver))
            migrate.upgrade(url)
            bench = Bench(url, options.smoke)
            for name, measure in bench.cases(1 if options.smoke else options.seconds):
                if options.only in name:
                    print(f"| {driver} | {name} | {measure()} |", flush=True)
            bench.store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
