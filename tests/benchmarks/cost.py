"""A program that counts Redis commands and Python calls per job and prints them as JSON.

    python -m tests.benchmarks.cost add redis://127.0.0.1:6379

It is a separate process, because earlier work must not count, and because CPython 3.11 may hang if
a profiler is set while coroutines of other tests are already specialized.
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
# Commands that the engine sends periodically, independent of the number of jobs.
BACKGROUND_COMMANDS = frozenset(
    [
        "hello",
        "client|setinfo",
        "client|id",
        "client|unblock",
        "info",
        "config|resetstat",
        "xgroup|create",
        "xgroup|delconsumer",
        "xinfo|consumers",
        "exists",
        "get",
        "set",
        "expire",
        "del",
        "script|load",
        "time",
        "select",
        "auth",
        "ping",
    ]
)
SHORT_DELAY, FAST_RETRY = timedelta(milliseconds=1), RetryPolicy(3, Backoff("fixed", 1))


async def count_cost(admin: redis.Redis, work: Callable[[], Awaitable[None]]) -> dict[str, Any]:
    """Return the commands (those inside scripts included) and the Python calls per job."""
    calls = 0

    def count_call(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    admin.config_resetstat()
    sys.setprofile(count_call)
    try:
        await work()
    finally:
        sys.setprofile(None)
    stats = admin.info("commandstats")
    per_job = {name.removeprefix("cmdstat_"): row["calls"] / JOBS for name, row in stats.items()}
    commands = {name: count for name, count in per_job.items() if name not in BACKGROUND_COMMANDS}
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
            raise RuntimeError("the first attempt fails")

    consumer = Consumer(queue, handle, ConsumerConfig(events=events))
    task = asyncio.create_task(consumer.run())
    await asyncio.wait_for(done.wait(), 50)
    consumer.stop()
    await task
    assert (await queue.depth()).waiting == 0


async def main(scenario: str, url: str) -> dict[str, Any]:
    admin = redis.Redis.from_url(url)
    async with AsyncQueue("cost", url) as queue:
        # Load the scripts and open the connections before counting.
        await queue.add_many(
            [NewJob(0), NewJob(0), NewJob(0, delay=SHORT_DELAY), NewJob(0, delay=SHORT_DELAY)]
        )
        admin.flushdb()

        async def add_one_by_one() -> None:
            for number in range(JOBS):
                await queue.add(number)

        async def add_bulk() -> None:
            await queue.add_many(NewJob(number) for number in range(JOBS))

        if scenario == "add":
            return await count_cost(admin, add_one_by_one)
        if scenario == "bulk":
            return await count_cost(admin, add_bulk)
        options = {"delayed": {"delay": SHORT_DELAY}, "retried": {"retry": FAST_RETRY}}.get(
            scenario, {}
        )
        await queue.add_many([NewJob(number, **options) for number in range(JOBS)])
        failing = scenario == "retried"
        runs = 2 * JOBS if failing else JOBS
        events = scenario == "run with events"
        return await count_cost(
            admin, lambda: run_all(queue, runs, events=events, fail_first=failing)
        )


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
