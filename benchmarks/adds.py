"""Bulk adds compared with redis-py pipelines and with the limit of the server.

    .venv/bin/python -m benchmarks.adds [--jobs 50000] [--rounds 5] [--server native|valkey]

All methods add the same jobs to a stream of the same server, in turns; compare the ratios, not the
rates. "raw" sends the bytes of add_many, encoded in advance, over a plain socket, so no client can
be faster. The CPU columns are the CPU time of this process and of the server per job. "by CPU" is
the ratio to raw in CPU time, which is less sensitive to other load on the machine.
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
    """Return payloads of about 150 bytes each."""
    return [
        {
            "customer": n,
            "email": f"customer{n}@example.org",
            "template": "newsletter-2026-11",
            "locale": "de-DE",
            "tags": ["weekly", "paying"],
            "score": n / 7,
        }
        for n in range(count)
    ]


class Bench:
    """One server and one list of jobs, which every method adds to a stream."""

    def __init__(self, url: str, jobs: int):
        self.url = url
        self.payloads = payloads(jobs)
        self.jobs = [NewJob(payload) for payload in self.payloads]
        self.keys = Keys("bench")
        self.admin = redis.Redis.from_url(url, protocol=2)
        self.sync = Queue("bench", url)
        self.dialect = self.sync.dialect()
        self.round = 0

    def reset(self) -> None:
        self.round += 1
        for key in self.admin.scan_iter(f"{self.keys.hash_tag}*", count=10_000):
            self.admin.unlink(key)

    def check(self) -> None:
        length = self.admin.xlen(self.keys.stream)
        assert length == len(self.payloads), f"the stream has {length} of {len(self.payloads)} jobs"

    def clocks(self) -> tuple[float, float, float]:
        info = self.admin.info("cpu")
        server = info["used_cpu_user"] + info["used_cpu_sys"]
        return time.perf_counter(), time.process_time(), float(server)

    def encoded_pipelines(self) -> list[tuple[bytes, int]]:
        """Return the pipelines that add_many sends, with their numbers of replies."""
        flows = QueueFlows(self.keys, QueueConfig(), current_time_ms)
        flow = flows.add_many(self.jobs)
        pipelines = []
        commands = next(flow)
        while True:
            assert isinstance(commands, list)
            request = PipelineRequest(commands, self.dialect, "bench", 0)
            data, owners = request.encode_pending()
            pipelines.append((b"".join(data), len(owners)))
            script_loads = len(owners) - len(commands)
            replies = [b"1" * MAX_CHUNK_JOBS for _ in commands]
            request.handle_replies([None] * script_loads + replies, owners)
            try:
                commands = flow.send(request.parsed_replies)
            except StopIteration:
                return pipelines

    def raw(self) -> Callable[[], None]:
        self.sync.add_many([NewJob(0), NewJob(0)])  # loads the script
        self.reset()
        pipelines = self.encoded_pipelines()
        address = urlsplit(self.url)
        connection = socket.create_connection((address.hostname, address.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send() -> None:
            reader = hiredis.Reader()
            for data, count in pipelines:
                connection.sendall(data)
                while count:
                    reader.feed(connection.recv(65536))
                    while (reply := reader.gets()) is not False:
                        assert not isinstance(reply, Exception), reply
                        count -= 1
            connection.close()

        return send

    def add_many(self) -> Callable[[], None]:
        return lambda: _ignore(self.sync.add_many(self.jobs))

    def add_batch(self) -> Callable[[], None]:
        return lambda: _ignore(self.sync.add_batch(self.payloads, batch_id=f"b{self.round}"))

    def add_many_async(self) -> Callable[[], None]:
        return lambda: asyncio.run(self._async(lambda queue: queue.add_many(self.jobs)))

    def add_batch_async(self) -> Callable[[], None]:
        batch = f"b{self.round}"
        return lambda: asyncio.run(
            self._async(lambda queue: queue.add_batch(self.payloads, batch_id=batch))
        )

    async def _async(self, call: Callable[[AsyncQueue], Any]) -> None:
        async with AsyncQueue("bench", self.url, dialect=self.dialect) as queue:
            await call(queue)

    def _fields(self) -> Iterator[dict[str, bytes]]:
        now_ms, ulids = current_time_ms(), UlidGenerator()
        for payload in self.payloads:
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


METHODS = {
    "raw": Bench.raw,
    "Queue.add_many": Bench.add_many,
    "Queue.add_batch": Bench.add_batch,
    "AsyncQueue.add_many": Bench.add_many_async,
    "AsyncQueue.add_batch": Bench.add_batch_async,
    "redis-py": Bench.redis_py,
    "redis-py async": Bench.redis_py_async,
}


class Duration(NamedTuple):
    """Seconds of wall-clock time, of CPU in this process, and of CPU in the server."""

    wall: float
    client: float
    server: float


def measure(bench: Bench, rounds: int) -> dict[str, list[Duration]]:
    """Return the durations of every method, which run in turns."""
    durations: dict[str, list[Duration]] = {name: [] for name in METHODS}
    for number in range(rounds + 1):
        for name, make in METHODS.items():
            bench.reset()
            send = make(bench)
            before = bench.clocks()
            send()
            after = bench.clocks()
            duration = Duration(*(end - start for start, end in zip(before, after, strict=True)))
            bench.check()
            if number:  # the first round is a warm-up
                durations[name].append(duration)
    return durations


def show(durations: dict[str, list[Duration]], jobs: int, title: str) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("method", no_wrap=True)
    for column in ("jobs/s", "of raw", "x peer", "client µs", "server µs", "by CPU"):
        table.add_column(column, justify="right")
    median = {
        name: Duration(*(statistics.median(column) for column in zip(*runs, strict=True)))
        for name, runs in durations.items()
    }
    raw = median["raw"]
    for name, duration in median.items():
        peer = median["redis-py async" if "Async" in name else "redis-py"]
        cpu, raw_cpu = duration.client + duration.server, raw.client + raw.server
        table.add_row(
            name,
            f"{jobs / duration.wall:,.0f}",
            f"{raw.wall / duration.wall:.2f}",
            f"{peer.wall / duration.wall:.1f}",
            f"{duration.client / jobs * 1e6:.1f}",
            f"{duration.server / jobs * 1e6:.1f}",
            f"{raw_cpu / cpu:.2f}",
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--server", choices=("native", "valkey"), default="native")
    options = parser.parse_args()
    binary = find(REDIS8)
    if options.server == "native" and binary is None:
        raise SystemExit("Redis 8.6 was not found; run `make servers`, or use --server valkey")
    server: Any = EmbeddedServer() if options.server == "valkey" else RedisServer.start(binary)  # type: ignore[arg-type]
    with server:
        bench = Bench(server.url, options.jobs)
        size = len(encode_payload(bench.payloads[0]))
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
