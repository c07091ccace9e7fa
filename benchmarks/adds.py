"""Bulk adds: how far are we from what the server can take, and from redis-py's own pipelines?

    .venv/bin/python -m benchmarks.adds [--jobs 50000] [--rounds 5] [--server native|valkey]

All contenders put the same jobs on a stream of the same server, in turns, in one run; quote the
ratios, not the rates. "raw" sends the very bytes of add_many, packed before the clock starts, over
a bare socket: nothing that speaks to this server in this way can be faster. The CPU columns say
what this process and the server used for one job. On a busy machine the rates tell more about the
neighbours than about us; "by CPU" is the ratio to raw that two idle cores would show.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import hiredis
import redis
import redis.asyncio
from rich.console import Console
from rich.table import Table

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.chunking import MAX_CHUNK_JOBS
from airflow_provider_chasqui.core.codec import encode_envelope
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.ids import UlidGenerator
from airflow_provider_chasqui.core.job import NewJob
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.core.queue_flows import QueueFlows
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.redis_client.retry import PipelineRequest
from airflow_provider_chasqui.testing.embedded_server import EmbeddedServer
from tests.support.servers import RedisServer
from tools.redis_server import REDIS8, find

PIPELINE = 1000


def payloads(count: int) -> list[dict[str, Any]]:
    """About 150 bytes each, as a job of everyday size."""
    return [
        {"customer": n, "email": f"customer{n}@example.org", "template": "newsletter-2026-11",
         "locale": "de-DE", "tags": ["weekly", "paying"], "score": n / 7}
        for n in range(count)
    ]  # fmt: skip


class Bench:
    """One server and one set of jobs, put on a stream by every contender."""

    def __init__(self, url: str, jobs: int):
        self.url = url
        self.work = payloads(jobs)
        self.new = [NewJob(payload) for payload in self.work]
        self.keys = Keys("bench")
        self.admin = redis.Redis.from_url(url, protocol=2)
        self.sync = Queue("bench", url)
        self.dialect = self.sync.dialect()
        self.turn = 0

    def reset(self) -> None:
        self.turn += 1
        for key in self.admin.scan_iter(f"{self.keys.hash_tag}*", count=10_000):
            self.admin.unlink(key)

    def check(self) -> None:
        length = self.admin.xlen(self.keys.stream)
        assert length == len(self.work), f"{length} of {len(self.work)} jobs"

    def clocks(self) -> tuple[float, float, float]:
        info = self.admin.info("cpu")
        server = info["used_cpu_user"] + info["used_cpu_sys"]
        return time.perf_counter(), time.process_time(), float(server)

    def packed(self) -> list[tuple[bytes, int]]:
        """The pipelines that add_many sends, and how many replies each has."""
        plan = QueueFlows(self.keys, QueueConfig(), current_time_ms)
        flow = plan.add_many(self.new)
        found = []
        ops = next(flow)
        while True:
            assert isinstance(ops, list)
            exchange = PipelineRequest(ops, self.dialect, "bench", 0)
            data, owners = exchange.encode_pending()
            found.append((b"".join(data), len(owners)))
            loads, signs = len(owners) - len(ops), [b"1" * MAX_CHUNK_JOBS for _ in ops]
            exchange.handle_replies([None] * loads + signs, owners)
            try:
                ops = flow.send(exchange.parsed_replies)
            except StopIteration:
                return found

    def raw(self) -> Callable[[], None]:
        self.sync.add_many([NewJob(0), NewJob(0)])  # the script is known from here on
        self.reset()
        pipelines = self.packed()
        place = urlsplit(self.url)
        bare = socket.create_connection((place.hostname, place.port))
        bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send() -> None:
            reader = hiredis.Reader()
            for data, count in pipelines:
                bare.sendall(data)
                while count:
                    reader.feed(bare.recv(65536))
                    while (reply := reader.gets()) is not False:
                        assert not isinstance(reply, Exception), reply
                        count -= 1
            bare.close()

        return send

    def add_many(self) -> Callable[[], None]:
        return lambda: _ignore(self.sync.add_many(self.new))

    def add_batch(self) -> Callable[[], None]:
        return lambda: _ignore(self.sync.add_batch(self.work, batch_id=f"b{self.turn}"))

    def add_many_async(self) -> Callable[[], None]:
        return lambda: asyncio.run(self._async(lambda queue: queue.add_many(self.new)))

    def add_batch_async(self) -> Callable[[], None]:
        batch = f"b{self.turn}"
        return lambda: asyncio.run(
            self._async(lambda queue: queue.add_batch(self.work, batch_id=batch))
        )

    async def _async(self, call: Callable[[AsyncQueue], Any]) -> None:
        async with AsyncQueue("bench", self.url, dialect=self.dialect) as queue:
            await call(queue)

    def _fields(self) -> Iterator[dict[str, bytes]]:
        now_ms, ulids = current_time_ms(), UlidGenerator()
        for payload in self.work:
            body = encode_payload(payload)
            yield {"d": encode_envelope(ulids.next(now_ms), body, now_ms)}

    def redis_py(self) -> Callable[[], None]:
        def send() -> None:
            with redis.Redis.from_url(self.url, protocol=2) as client:
                pipe = client.pipeline(transaction=False)
                for number, fields in enumerate(self._fields(), 1):
                    pipe.xadd(self.keys.stream, fields)  # type: ignore[arg-type]
                    if number % PIPELINE == 0:
                        pipe.execute()
                pipe.execute()

        return send

    def redis_py_async(self) -> Callable[[], None]:
        async def send() -> None:
            async with redis.asyncio.Redis.from_url(self.url, protocol=2) as client:
                pipe = client.pipeline(transaction=False)
                for number, fields in enumerate(self._fields(), 1):
                    pipe.xadd(self.keys.stream, fields)  # type: ignore[arg-type]
                    if number % PIPELINE == 0:
                        await pipe.execute()
                await pipe.execute()

        return lambda: asyncio.run(send())


def _ignore(_: object) -> None:
    pass


CONTENDERS = {
    "raw": Bench.raw,
    "Queue.add_many": Bench.add_many,
    "Queue.add_batch": Bench.add_batch,
    "AsyncQueue.add_many": Bench.add_many_async,
    "AsyncQueue.add_batch": Bench.add_batch_async,
    "redis-py": Bench.redis_py,
    "redis-py async": Bench.redis_py_async,
}


class Took(NamedTuple):
    """Seconds: by the clock, of this process, of the server."""

    wall: float
    client: float
    server: float


def measure(bench: Bench, rounds: int) -> dict[str, list[Took]]:
    """What every contender took, in turns."""
    seen: dict[str, list[Took]] = {name: [] for name in CONTENDERS}
    for number in range(rounds + 1):
        for name, make in CONTENDERS.items():
            bench.reset()
            send = make(bench)
            before = bench.clocks()
            send()
            took = Took(*(now - then for now, then in zip(bench.clocks(), before, strict=True)))
            bench.check()
            if number:  # the first round warms up
                seen[name].append(took)
    return seen


def show(seen: dict[str, list[Took]], jobs: int, title: str) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("contender", no_wrap=True)
    for column in ("jobs/s", "of raw", "x peer", "client µs", "server µs", "by CPU"):
        table.add_column(column, justify="right")
    median = {
        name: Took(*(statistics.median(each) for each in zip(*times, strict=True)))
        for name, times in seen.items()
    }
    raw = median["raw"]
    for name, took in median.items():
        rival = median["redis-py async" if "Async" in name else "redis-py"]
        busy, least = took.client + took.server, raw.client + raw.server
        table.add_row(
            name, f"{jobs / took.wall:,.0f}", f"{raw.wall / took.wall:.2f}",
            f"{rival.wall / took.wall:.1f}", f"{took.client / jobs * 1e6:.1f}",
            f"{took.server / jobs * 1e6:.1f}", f"{least / busy:.2f}",
        )  # fmt: skip
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--server", choices=("native", "valkey"), default="native")
    options = parser.parse_args()
    binary = find(REDIS8)
    if options.server == "native" and binary is None:
        raise SystemExit("there is no Redis 8.6 here: run `make servers`, or use --server valkey")
    server: Any = EmbeddedServer() if options.server == "valkey" else RedisServer.start(binary)  # type: ignore[arg-type]
    with server:
        bench = Bench(server.url, options.jobs)
        size = len(encode_payload(bench.work[0]))
        load = os.getloadavg()[0]
        title = (
            f"{options.jobs:,} jobs of {size} bytes, {bench.dialect} dialect, median of "
            f"{options.rounds}, load {load:.1f}"
        )
        show(measure(bench, options.rounds), options.jobs, title)
        bench.sync.close()
        bench.admin.close()


if __name__ == "__main__":
    main()
