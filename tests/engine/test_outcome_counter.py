"""The counters of outcomes per minute agree with what the handlers counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

from airflow_provider_chasqui.core.commands.counters import ThroughputBucket, read_throughput
from airflow_provider_chasqui.core.commands.delayed import server_time_ms
from airflow_provider_chasqui.core.outcome import Unrecoverable
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.engine.conftest import empty, working
from tests.support.waiting import wait_until_async

SOON = RetryPolicy(3, Backoff.fixed(timedelta(milliseconds=1)))


async def counted(queue: AsyncQueue) -> Counter[str]:
    """Return the sums of the last ten minutes."""
    now_ms = await queue.client.execute(server_time_ms())
    buckets: list[ThroughputBucket] = await queue.client.run_flow(
        read_throughput(queue.keys, now_ms, 10, 10)
    )
    return Counter(
        {
            outcome: sum(getattr(bucket, outcome) for bucket in buckets)
            for outcome in ("completed", "failed", "retried", "dead")
        }
    )


async def test_counters_agree_with_the_handlers(queue: AsyncQueue) -> None:
    """A burst of quick jobs, which used to be estimated, and jobs that fail and die."""
    runs: Counter[str] = Counter()

    async def handle(job: Any) -> None:
        if job.name == "die":
            runs["failed"] += 1
            raise Unrecoverable("no such address")
        if job.name == "retry" and job.attempt == 0:
            runs["failed"] += 1
            runs["retried"] += 1
            raise ValueError("once")
        runs["completed"] += 1

    names = ["quick"] * 3000 + ["retry"] * 40 + ["die"] * 7
    await queue.add_many([{"payload": 1, "job_name": name, "retry": SOON} for name in names])
    async with working(queue, handle):
        await wait_until_async(lambda: empty(queue))
    expected = runs | Counter(dead=7)
    assert expected == {"completed": 3040, "failed": 47, "retried": 40, "dead": 7}
    assert await counted(queue) == expected


async def test_an_idle_worker_sends_nothing(queue: AsyncQueue, client: Any) -> None:
    async def handle(job: Any) -> None: ...

    async with working(queue, handle):
        await asyncio.sleep(1.2)  # longer than the interval of the counter
    assert list(client.scan_iter(f"{queue.keys.hash_tag}:outcomes:*")) == []
