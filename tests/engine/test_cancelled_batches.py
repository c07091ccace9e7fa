"""Workers drop the jobs of a cancelled batch, and interrupt those that run."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.core.command import as_int, redis_command
from airflow_provider_chasqui.core.outcome import Retry
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.engine.conftest import empty, event_names, working
from tests.support.waiting import wait_until_async

BATCH = "b"


async def assert_dropped(queue: AsyncQueue, total: int, done: int = 0) -> None:
    """Wait until no job is left; none of the dropped ones is done, dead or a dead letter."""
    await wait_until_async(lambda: empty(queue))
    progress = await queue.batch_progress(BATCH)
    assert (progress.total, progress.done, progress.dead) == (total, done, 0)
    assert progress.cancelled
    assert await queue.dead_letters() == []


def recorder(ran: list[int]) -> Callable[[Any], Awaitable[None]]:
    async def handler(job: Any) -> None:
        ran.append(job.payload)

    return handler


async def test_jobs_that_nobody_has_read_are_dropped(queue: AsyncQueue) -> None:
    ran: list[int] = []
    await queue.add_batch(range(700), batch_id=BATCH)
    await queue.add(-1)
    await queue.add_batch([-2, -3], batch_id="other")
    await queue.cancel_batch(BATCH)
    async with working(queue, recorder(ran)):
        await assert_dropped(queue, 700)
    assert sorted(ran) == [-3, -2, -1]
    assert (await queue.batch_progress("other")).done == 2
    assert await event_names(queue, "batch:b:0:3") == ["failed", "dlq"]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_running_and_prefetched_jobs_are_stopped(queue: AsyncQueue, kind: str) -> None:
    started: list[int] = []
    finished: list[int] = []

    async def wait(job: Any) -> None:
        started.append(job.payload)
        await asyncio.sleep(60)
        finished.append(job.payload)

    def block(job: Any) -> None:
        started.append(job.payload)
        for _ in range(6000):
            time.sleep(0.01)
        finished.append(job.payload)

    await queue.add_batch(range(50), batch_id=BATCH)
    handler = wait if kind == "async" else block
    async with working(queue, handler, concurrency=3):
        await wait_until_async(lambda: len(started) == 3)
        assert await queue.cancel_batch(BATCH) == "cancelled"
        await assert_dropped(queue, 50)
    assert finished == []
    assert len(started) < 50


async def test_prefetched_jobs_do_not_start(queue: AsyncQueue) -> None:
    ran: list[int] = []
    release = asyncio.Event()

    async def handler(job: Any) -> None:
        ran.append(job.payload)
        if job.payload == 60:
            await release.wait()

    # Quick jobs make the worker prefetch; job 60 keeps the only slot busy.
    await queue.add_batch(range(300), batch_id=BATCH)
    async with working(queue, handler, concurrency=1) as consumer:
        await wait_until_async(lambda: 60 in ran)
        assert len(consumer._runtime.state.in_flight) > 1, "nothing is prefetched"
        await queue.cancel_batch(BATCH)
        await assert_dropped(queue, 300, done=60)
    assert ran == list(range(61))


async def test_delayed_jobs_are_dropped_when_they_become_due(queue: AsyncQueue) -> None:
    ran: list[int] = []
    await queue.add_batch(range(5), batch_id=BATCH, delay=timedelta(milliseconds=1500))
    async with working(queue, recorder(ran)):
        await queue.cancel_batch(BATCH)
        await assert_dropped(queue, 5)
    assert ran == []


@pytest.mark.parametrize("ending", ["raise", "return"])
async def test_a_failed_job_is_not_retried_after_the_cancel(queue: AsyncQueue, ending: str) -> None:
    attempts: list[int] = []

    async def handler(job: Any) -> Any:
        attempts.append(job.attempt)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if ending == "return":
                return Retry("later")
            raise ValueError("failed while it was interrupted") from None

    await queue.add_batch([1], batch_id=BATCH, retry=RetryPolicy(5))
    async with working(queue, handler):
        await wait_until_async(lambda: attempts)
        await queue.cancel_batch(BATCH)
        await assert_dropped(queue, 1)
    assert attempts == [0]
    assert "retry-scheduled" not in await event_names(queue)


async def test_a_retry_that_was_scheduled_before_the_cancel_is_dropped(queue: AsyncQueue) -> None:
    attempts: list[int] = []

    async def handler(job: Any) -> None:
        attempts.append(job.attempt)
        raise ValueError("no")

    # Longer than the second that a worker needs to notice the cancel.
    retry = RetryPolicy(5, Backoff.fixed(timedelta(seconds=3)))
    await queue.add_batch([1], batch_id=BATCH, retry=retry)
    async with working(queue, handler):
        await wait_until_async(lambda: attempts)
        await queue.cancel_batch(BATCH)
        await assert_dropped(queue, 1)
    assert attempts == [0]


async def test_a_cancelled_batch_costs_other_jobs_no_commands(
    queue: AsyncQueue, client: Any
) -> None:
    ran: list[int] = []
    await queue.add_batch(range(5), batch_id=BATCH)
    await queue.cancel_batch(BATCH)
    async with working(queue, recorder(ran)):
        await assert_dropped(queue, 5)
        client.config_resetstat()
        await queue.add_batch(range(2000), batch_id="other")
        await queue.wait_batch("other")
    statistics = client.info("commandstats")
    # The counters of outcomes use HEXISTS for each field, once per second.
    assert statistics.get("cmdstat_hexists", {"calls": 0})["calls"] < 100
    assert "cmdstat_zmscore" not in statistics
    assert statistics["cmdstat_zrangebyscore"]["calls"] < 500  # the heartbeat and the promoter


async def test_a_batch_id_that_is_used_again_after_its_expiry_is_not_dropped(
    queue: AsyncQueue,
) -> None:
    ran: list[int] = []
    await queue.add_batch([1], batch_id=BATCH)
    await queue.cancel_batch(BATCH)
    async with working(queue, recorder(ran)):
        await assert_dropped(queue, 1)
        # The batch expires; the worker still knows that it was cancelled.
        await queue.client.execute(redis_command("DEL", queue.keys.batch(BATCH), parse=as_int))
        await queue.add_batch([2], batch_id=BATCH)
        await queue.wait_batch(BATCH)
    assert ran == [2]


WORKER = """
import asyncio, sys
from datetime import timedelta
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue_async import AsyncQueue

async def handler(job):
    print("started", flush=True)
    await asyncio.sleep(60)

async def main(url, queue_name, dialect):
    async with AsyncQueue(queue_name, url, dialect=dialect) as queue:
        await Consumer(queue, handler, ConsumerConfig(concurrency=4)).run()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_jobs_of_a_killed_worker_are_dropped_by_the_next_one(
    queue: AsyncQueue, server: Any
) -> None:
    ran: list[int] = []
    await queue.add_batch(range(20), batch_id=BATCH)
    arguments = [sys.executable, "-c", WORKER, server.url, queue.name, server.dialect]
    process = await asyncio.create_subprocess_exec(
        *arguments, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    try:
        assert process.stdout
        await asyncio.wait_for(process.stdout.readline(), 60)
    finally:
        process.kill()
        await process.wait()
    assert (await queue.depth()).running > 0
    await queue.cancel_batch(BATCH)
    async with working(queue, recorder(ran), claim_after=timedelta(seconds=1)):
        await assert_dropped(queue, 20)
    assert ran == []
