"""What a job costs, counted and not timed: Redis commands, round trips and Python calls.

Counts do not depend on the machine's load, so a hot path that got dearer fails here and not only in
the benchmark that nobody ran. Each bound is a little above what is measured today.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.job import Job, NewJob
from airflow_provider_chasqui.core.policy import Backoff, RetryPolicy
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue import AsyncQueue
from tests.servers import RedisServer

JOBS = 4_000
# What the engine does now and then, however many jobs there are.
BESIDE = {"hello", "client|setinfo", "client|id", "client|unblock", "info", "config|resetstat",
          "xgroup|create", "xgroup|delconsumer", "xinfo|consumers", "exists", "get", "set",
          "expire", "del", "script|load", "time", "select", "auth", "ping"}  # fmt: skip
ROUND_TRIPS = ("evalsha", "xreadgroup", "xackdel", "xadd")


@dataclass(frozen=True)
class Cost:
    """Per job: commands on the server, those inside scripts included; calls in Python."""

    commands: dict[str, float]
    calls: float

    @property
    def total(self) -> float:
        return sum(self.commands.values())

    @property
    def scripts_and_reads(self) -> float:
        return self.commands.get("evalsha", 0) + self.commands.get("xreadgroup", 0)


@pytest.fixture(scope="module")
def own_server(redis86_binary: Path) -> Iterator[RedisServer]:
    """One that nobody else talks to: its counters are ours."""
    with RedisServer.start(redis86_binary) as server:
        yield server


@pytest.fixture
async def queue(own_server: RedisServer) -> Any:
    async with AsyncQueue("cost", own_server.url) as queue:
        with redis.Redis.from_url(own_server.url) as admin:
            admin.flushall()
        later = timedelta(milliseconds=1)
        await queue.add_many([NewJob(0), NewJob(0), NewJob(0, delay=later), NewJob(0, delay=later)])
        with redis.Redis.from_url(own_server.url) as admin:
            admin.flushdb()
        yield queue


async def cost(own_server: RedisServer, work: Callable[[], Awaitable[None]]) -> Cost:
    with redis.Redis.from_url(own_server.url) as admin:
        admin.config_resetstat()
        calls = 0

        def note(frame: Any, event: str, arg: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            await work()
        finally:
            sys.setprofile(None)
        stats = admin.info("commandstats")
    counted = {name.removeprefix("cmdstat_"): each["calls"] / JOBS for name, each in stats.items()}
    commands = {name: calls for name, calls in counted.items() if name not in BESIDE}
    return Cost(commands, calls / JOBS)


async def run_all(queue: AsyncQueue, runs: int, *, events: bool, fail_first: bool = False) -> None:
    seen: set[Any] = set()
    done = asyncio.Event()
    count = 0

    async def handle(job: Job) -> None:
        nonlocal count
        count += 1
        if count >= runs:
            done.set()
        if fail_first and job.payload not in seen:
            seen.add(job.payload)
            raise RuntimeError("the first time it fails")

    consumer = Consumer(queue, handle, ConsumerConfig(events=events))
    task = asyncio.create_task(consumer.run())
    await asyncio.wait_for(done.wait(), 50)
    consumer.stop()
    await task
    assert (await queue.depth()).waiting == 0


async def test_one_add_is_one_command(own_server: RedisServer, queue: AsyncQueue) -> None:
    async def adds() -> None:
        for number in range(JOBS):
            await queue.add(number)

    spent = await cost(own_server, adds)
    assert spent.commands == {"xadd": 1.0}
    assert spent.calls < 280, spent.calls


async def test_bulk_is_a_script_call_for_256_jobs(
    own_server: RedisServer, queue: AsyncQueue
) -> None:
    async def adds() -> None:
        await queue.add_many([NewJob(number) for number in range(JOBS)])

    spent = await cost(own_server, adds)
    assert spent.commands["xadd"] == 1.0
    assert spent.commands["evalsha"] <= 1 / 250
    assert spent.total < 1.02, spent
    assert spent.calls < 16, spent.calls


async def test_a_run_without_events_is_a_fraction_of_a_command(
    own_server: RedisServer, queue: AsyncQueue
) -> None:
    await queue.add_many([NewJob(number) for number in range(JOBS)])
    spent = await cost(own_server, lambda: run_all(queue, JOBS, events=False))
    assert spent.total < 0.05, spent
    assert spent.calls < 58, spent.calls


async def test_a_run_with_events_adds_its_two_events_and_nothing_else(
    own_server: RedisServer, queue: AsyncQueue
) -> None:
    await queue.add_many([NewJob(number) for number in range(JOBS)])
    spent = await cost(own_server, lambda: run_all(queue, JOBS, events=True))
    assert 2.0 <= spent.commands["xadd"] < 2.01
    assert spent.scripts_and_reads < 0.04, spent
    assert spent.total < 2.15, spent
    assert spent.calls < 68, spent.calls


async def test_delayed_jobs_are_promoted_in_bulk(
    own_server: RedisServer, queue: AsyncQueue
) -> None:
    await queue.add_many(
        [NewJob(number, delay=timedelta(milliseconds=1)) for number in range(JOBS)]
    )
    spent = await cost(own_server, lambda: run_all(queue, JOBS, events=False))
    assert spent.commands["xadd"] == 1.0
    assert spent.total < 2.1, spent


async def test_retries_are_parked_and_promoted_in_bulk(
    own_server: RedisServer, queue: AsyncQueue
) -> None:
    at_once = RetryPolicy(3, Backoff("fixed", 1))
    await queue.add_many([NewJob(number, retry=at_once) for number in range(JOBS)])
    spent = await cost(own_server, lambda: run_all(queue, 2 * JOBS, events=False, fail_first=True))
    assert spent.scripts_and_reads < 0.05, spent
    assert spent.total < 3.2, spent
