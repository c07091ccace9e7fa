"""What a job costs, counted in a process of its own: prints it as JSON.

    python -m tests.benchmarks.cost add redis://127.0.0.1:6379

A fresh process, because what ran before must not count, and because CPython 3.11 may hang where a
profiler meets coroutines that other tests have warmed up.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import redis

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.job import Job, NewJob
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue_async import AsyncQueue

JOBS = 4_000
# What the engine does now and then, however many jobs there are.
BESIDE = {"hello", "client|setinfo", "client|id", "client|unblock", "info", "config|resetstat",
          "xgroup|create", "xgroup|delconsumer", "xinfo|consumers", "exists", "get", "set",
          "expire", "del", "script|load", "time", "select", "auth", "ping"}  # fmt: skip
LATER, AT_ONCE = timedelta(milliseconds=1), RetryPolicy(3, Backoff("fixed", 1))


async def counted(admin: redis.Redis, work: Callable[[], Awaitable[None]]) -> dict[str, Any]:
    """Per job: commands on the server, those inside scripts included; calls in Python."""
    calls = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    admin.config_resetstat()
    sys.setprofile(note)
    try:
        await work()
    finally:
        sys.setprofile(None)
    stats = admin.info("commandstats")
    per_job = {name.removeprefix("cmdstat_"): each["calls"] / JOBS for name, each in stats.items()}
    commands = {name: count for name, count in per_job.items() if name not in BESIDE}
    return {"commands": commands, "calls": calls / JOBS}


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


async def main(what: str, url: str) -> dict[str, Any]:
    admin = redis.Redis.from_url(url)
    async with AsyncQueue("cost", url) as queue:
        # The scripts are loaded and the connections made before anything counts.
        await queue.add_many([NewJob(0), NewJob(0), NewJob(0, delay=LATER), NewJob(0, delay=LATER)])
        admin.flushdb()

        async def one_by_one() -> None:
            for number in range(JOBS):
                await queue.add(number)

        async def bulk() -> None:
            await queue.add_many(NewJob(number) for number in range(JOBS))

        if what == "add":
            return await counted(admin, one_by_one)
        if what == "bulk":
            return await counted(admin, bulk)
        options = {"delayed": {"delay": LATER}, "retried": {"retry": AT_ONCE}}.get(what, {})
        await queue.add_many([NewJob(number, **options) for number in range(JOBS)])
        failing = what == "retried"
        runs = 2 * JOBS if failing else JOBS
        events = what == "run with events"
        return await counted(admin, lambda: run_all(queue, runs, events=events, fail_first=failing))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
