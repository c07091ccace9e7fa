"""Tests that consumers survive restarts, hangs, full memory and failover without losing jobs."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.errors import ChasquiError, QueueFull
from airflow_provider_chasqui.core.outcome import Unrecoverable
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.conftest import SERVERS
from tests.engine.conftest import PUNCTUAL, empty, working
from tests.redis_client.test_sentinel import Fleet, fleet  # noqa: F401
from tests.support.redis_state import plain_client
from tests.support.servers import RedisServer, valkey_binary
from tests.support.waiting import wait_until_async

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

MANY_ATTEMPTS = RetryPolicy(50, Backoff.fixed(timedelta(milliseconds=20)))


@pytest.fixture(params=["redis8-native", "valkey"])
def start(request: pytest.FixtureRequest) -> Iterator[Callable[..., tuple[RedisServer, str]]]:
    """Return a function that starts a private server, once per dialect."""
    started: list[RedisServer] = []

    def launch(*args: str, **options: Any) -> tuple[RedisServer, str]:
        kind = request.param
        binary: Path = (
            valkey_binary() if kind == "valkey" else request.getfixturevalue("redis86_binary")
        )
        started.append(RedisServer.start(binary, *args, **options))
        return started[-1], SERVERS[kind][1]

    yield launch
    for server in started:
        server.close()


class Ledger:
    """The jobs that were added, the runs, and a handler that fails some first attempts."""

    def __init__(self, queue: AsyncQueue):
        self.queue = queue
        self.added: list[str] = []
        self.done: Counter[str] = Counter()
        self.fired = 0

    async def handle(self, job: Any) -> None:
        if job.name == "fired":
            self.fired += 1
            return
        await asyncio.sleep(random.random() * 0.02)
        if job.attempt == 0 and job.payload % 5 == 0:
            raise ValueError("the first attempt fails")
        self.done[job.id] += 1

    async def feed(self, stop: asyncio.Event) -> None:
        """Add immediate and delayed jobs as fast as the server accepts them."""
        number = 0
        while not stop.is_set():
            number += 1
            delay = timedelta(milliseconds=50) if number % 3 == 0 else None
            job_id = f"j{number}"
            # An add that fails may have succeeded on the server, so the next one uses another id.
            with suppress(ChasquiError):
                await self.queue.add(number, job_id=job_id, delay=delay, retry=MANY_ATTEMPTS)
                self.added.append(job_id)
            await asyncio.sleep(0.005)

    def missing(self) -> list[str]:
        return [job_id for job_id in self.added if not self.done[job_id]]


@asynccontextmanager
async def busy(
    queue: AsyncQueue, server: str, dialect: str | None, **changes: Any
) -> AsyncIterator[Ledger]:
    """Run two consumers and a producer; after the block every job must complete."""
    ledger = Ledger(queue)
    stop = asyncio.Event()
    changes = {"claim_after": timedelta(milliseconds=2000), "scheduler": PUNCTUAL, **changes}
    await queue.repeat(1, Every(100), job_name="fired")
    async with (
        AsyncQueue(queue.name, server, dialect=dialect) as first_queue,
        AsyncQueue(queue.name, server, dialect=dialect) as second_queue,
        working(first_queue, ledger.handle, **changes) as first,
        working(second_queue, ledger.handle, **changes) as second,
    ):
        feeding = asyncio.create_task(ledger.feed(stop))
        await wait_until_async(lambda: len(ledger.done) > 20)
        yield ledger
        resumed_at, done, fired = time.monotonic(), len(ledger.done), ledger.fired
        for consumer in (first, second):
            metrics = consumer.metrics
            await wait_until_async(
                lambda metrics=metrics: metrics.gauges["read_at"] > resumed_at, 40
            )
        await wait_until_async(lambda: len(ledger.done) > done + 20, 40)
        await wait_until_async(lambda: ledger.fired > fired, 40)
        stop.set()
        await feeding
        await wait_until_async(lambda: not ledger.missing(), 60)
        await queue.delete_repeat("fired::every:100")
        await wait_until_async(lambda: empty(queue), 40)
    assert ledger.missing() == []
    depth = await queue.depth()
    assert (depth.dead, depth.running, depth.consumers) == (0, 0, 0)


def outages(caplog: Any) -> Counter[str]:
    """Return how many outages each component has logged."""
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    return Counter(
        re.match(r"[^:]+", text)[0] for text in warnings if "retrying until it succeeds" in text
    )


async def test_consumers_recover_from_a_server_restart(start, queue_name: str, caplog) -> None:
    """The server is killed with everything on disk; each component logs one outage."""
    caplog.set_level(logging.INFO, "chasqui")
    server, dialect = start("--appendfsync", "always", aof=True)
    async with AsyncQueue(queue_name, server.url, dialect=dialect) as queue:
        async with busy(queue, server.url, dialect) as ledger:
            server.kill()
            await asyncio.sleep(1.5)
            await asyncio.to_thread(server.restart)
        assert max(Counter(ledger.done).values()) <= 3
    logged = outages(caplog)
    assert logged["reader"] == 2  # one per consumer
    assert max(logged.values()) <= 2
    recovered = [r for r in caplog.records if "reader: recovered" in r.message]
    assert len(recovered) == 2


async def test_consumers_recover_from_connections_killed_at_random(
    start, queue_name: str, caplog
) -> None:
    server, dialect = start()
    async with AsyncQueue(queue_name, server.url, dialect=dialect) as queue:
        with plain_client(server.url) as client:
            async with busy(queue, server.url, dialect):
                own_id, killed, end = client.client_id(), 0, time.monotonic() + 8
                while time.monotonic() < end:
                    for connection in client.client_list():
                        if int(connection["id"]) != own_id and random.random() < 0.5:
                            killed += client.client_kill_filter(_id=connection["id"])
                    await asyncio.sleep(random.random() * 0.2)
                assert killed > 20


async def test_consumers_recover_from_script_flush_without_warnings(
    start, queue_name: str, caplog
) -> None:
    caplog.set_level(logging.WARNING, "chasqui")
    server, dialect = start()
    async with AsyncQueue(queue_name, server.url, dialect=dialect) as queue:
        with plain_client(server.url) as client:
            async with busy(queue, server.url, dialect):
                for _ in range(30):
                    client.script_flush()
                    await asyncio.sleep(0.05)
    messages = [record.getMessage() for record in caplog.records]
    assert [text for text in messages if "the first attempt fails" not in text] == []


async def test_consumers_recover_from_a_server_that_hangs(start, queue_name: str, caplog) -> None:
    server, dialect = start()
    url = server.url + "?timeout=1"
    async with (
        AsyncQueue(queue_name, url, dialect=dialect) as queue,
        busy(queue, url, dialect, block_timeout=timedelta(milliseconds=300)),
    ):
        server.pause()
        await asyncio.sleep(9)  # longer than the timeout of a blocked read
        server.resume()
    assert max(outages(caplog).values(), default=1) <= 2


async def test_without_memory_acks_continue_and_other_writes_wait(
    start, queue_name: str, caplog
) -> None:
    caplog.set_level(logging.WARNING, "chasqui")
    server, dialect = start("--maxmemory-policy", "noeviction")
    release = asyncio.Event()
    done: Counter[str] = Counter()

    async def handle(job) -> None:
        if job.name == "fails":
            if job.attempt == 0:
                raise ValueError("once")
        elif job.name == "dies":
            raise Unrecoverable("no retry")
        elif job.name == "waits":
            await release.wait()
        done[job.name] += 1

    async with AsyncQueue(queue_name, server.url, dialect=dialect) as queue:
        with plain_client(server.url) as client:
            for name, count in (("waits", 50), ("good", 300), ("fails", 20), ("dies", 20)):
                jobs = [
                    {"payload": 1, "job_name": name, "retry": MANY_ATTEMPTS} for _ in range(count)
                ]
                await queue.add_many(jobs)
            await queue.client.execute(consumer_group.create(queue.keys, "default"))
            client.config_set("maxmemory", client.info("memory")["used_memory"] - 1000)
            with pytest.raises(QueueFull):
                await queue.add(1)
            async with working(queue, handle, claim_after=timedelta(milliseconds=1500)) as consumer:
                await wait_until_async(lambda: done["good"] == 300)
                release.set()
                # Acks free memory. A retry or a dead letter reuses the memory of its entry.
                await wait_until_async(lambda: consumer.metrics.counts["acked"] == 390)
                # What needs more memory (events, promotion) waits and is retried slowly.
                depth = await queue.depth()
                assert (depth.running, depth.waiting) == (0, 0)
                assert (depth.delayed, depth.dead) == (20, 20)
                errors_before = client.info("stats")["total_error_replies"]
                await asyncio.sleep(1)
                assert client.info("stats")["total_error_replies"] - errors_before < 50
                assert await queue.events() == []
                client.config_set("maxmemory", 0)
                await wait_until_async(lambda: done["fails"] == 20)
                await wait_until_async(lambda: empty(queue))
            names = Counter(event.name for event in await queue.events(limit=10_000))
            assert (names["completed"], names["dlq"], names["failed"]) == (370, 20, 40)
    assert done == {"good": 300, "waits": 50, "fails": 20}
    assert set(outages(caplog).values()) == {1}


@pytest.mark.usefixtures("fleet")
async def test_consumers_follow_a_failover(fleet: Fleet, queue_name: str) -> None:  # noqa: F811
    """The master is killed: the consumers connect to the new one that the sentinels elect."""
    url = fleet.url(timeout=2)
    master = redis.Redis(port=fleet.master.port, password="pw")
    async with AsyncQueue(queue_name, url) as queue, busy(queue, url, None) as ledger:
        # Jobs that were not replicated are lost with the master, whatever the client does.
        replicated = len(ledger.added)
        await asyncio.to_thread(master.wait, 1, 5000)
        master.close()
        fleet.master.kill()
        at_kill = len(ledger.added)
        await wait_until_async(lambda: fleet.address() == fleet.replica.port, 40)
        unreplicated = ledger.added[replicated:at_kill]
        ledger.added = [job_id for job_id in ledger.added if job_id not in unreplicated]


async def test_a_paused_consumer_continues_after_its_jobs_were_claimed(
    start, queue_name: str, caplog
) -> None:
    """While it was paused another consumer claimed its jobs; it continues without errors."""
    server, dialect = start()
    ran: list[tuple[str, str]] = []

    async def first(job) -> None:
        ran.append(("first", job.id))
        time.sleep(3)  # the event loop is blocked  # noqa: ASYNC251

    async def second(job) -> None:
        ran.append(("second", job.id))

    async with AsyncQueue(queue_name, server.url, dialect=dialect) as queue:
        await queue.add_many([{"payload": 1, "job_id": f"j{n}"} for n in range(3)])

        async def run_second() -> None:
            async with (
                AsyncQueue(queue_name, server.url, dialect=dialect) as second_queue,
                working(second_queue, second, claim_after=timedelta(milliseconds=500)),
            ):
                await wait_until_async(lambda: len({job_id for _, job_id in ran}) == 3, 60)
                await wait_until_async(lambda: empty(second_queue), 60)

        async with working(queue, first, claim_after=timedelta(milliseconds=500), concurrency=3):
            await wait_until_async(lambda: ran)
            await asyncio.to_thread(asyncio.run, run_second())
            await wait_until_async(lambda: empty(queue))
    assert {job_id for _, job_id in ran} == {"j0", "j1", "j2"}
