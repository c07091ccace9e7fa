"""Tests of jobs whose worker died or renewed its claim too late, and of their attempt limits."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.retry import RetryDefaults, RetryPolicy
from airflow_provider_chasqui.engine.consumer import ConsumerRuntime
from airflow_provider_chasqui.engine.handlers import Handlers
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.conftest import Server
from tests.engine.conftest import empty, settings, working
from tests.support.waiting import wait_until_async


async def test_an_entry_acked_while_a_read_reclaims_it_does_not_run_again(
    queue: AsyncQueue,
) -> None:
    async def handle(job) -> None:
        pass

    runtime = ConsumerRuntime(
        queue, Handlers(handle), settings(claim_after=timedelta(milliseconds=1))
    )
    state, reader, buffer = runtime.state, runtime._reader, runtime._async_executor.buffer
    await queue.client.execute(consumer_group.create(state.keys, state.group))
    await queue.add_many([{"payload": 1}, {"payload": 2}])
    await reader._read_and_dispatch()
    (first, _), (second, _) = buffer.take_all()
    # The reply to the ack arrives before the reply to this read.
    state.read_started()
    reclaimed = await reader._read(10, 0)
    while len(reclaimed) < 2:
        reclaimed = await reader._read(10, 0)
    await queue.client.execute(consumer_group.ack(state.keys, state.group, [first.id]))
    state.forget_entries([first.id])
    await reader._accept_entries(reclaimed)
    assert not buffer.items, "the first entry is acked, the second is still in flight"
    # A read that starts after the ack returns only entries that still exist.
    state.in_flight.pop(second.id)
    state.read_started()
    await reader._accept_entries(reclaimed[1:])
    assert [entry.id for entry, _ in buffer.take_all()] == [second.id]
    await runtime._reader_client.close()


_QUICK_WORKER = """
import asyncio, sys
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.retry import RetryDefaults
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue_async import AsyncQueue

async def handle(job):
    pass

async def main():
    _, url, dialect, name, attempts = sys.argv
    config = ConsumerConfig(retry=RetryDefaults(max_attempts=int(attempts)))
    async with AsyncQueue(name, url, dialect=dialect) as queue:
        await Consumer(queue, handle, config).run()

asyncio.run(main())
"""


@pytest.mark.parametrize("limit", ["of the worker", "of the job"])
async def test_a_killed_worker_concerns_few_jobs_with_one_attempt(
    queue: AsyncQueue, server: Server, limit: str
) -> None:
    """Jobs with one attempt are not prefetched, and their outcomes are written at once."""
    retry = RetryPolicy(1) if limit == "of the job" else None
    await queue.add_many([{"payload": n, "retry": retry} for n in range(40_000)])
    attempts = "25" if limit == "of the job" else "1"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _QUICK_WORKER, server.url, server.dialect, queue.name, attempts
    )
    try:
        await wait_until_async(lambda: _waiting_below(queue, 30_000), interval=0.001)
    finally:
        process.kill()
        await process.wait()
    pending = await queue.client.execute(consumer_group.pending_count(queue.keys, "default"))
    # The default concurrency is 100.
    assert pending <= 200
    config = {"claim_after": timedelta(milliseconds=100), "retry": RetryDefaults(int(attempts))}
    async with working(queue, _finish, **config):
        await wait_until_async(lambda: empty(queue), 30)
    dead = await queue.dead_letters(limit=1000)
    assert len(dead) == pending
    assert all("unknown whether the job ran" in dead_letter.error for dead_letter in dead)


async def _finish(job: Any) -> None:
    pass


async def _waiting_below(queue: AsyncQueue, limit: int) -> bool:
    return (await queue.depth()).waiting < limit


async def test_a_dead_letter_names_a_lowered_attempt_limit(queue: AsyncQueue) -> None:
    """The job failed and did not crash its worker."""

    async def fail(job) -> None:
        raise ValueError("no")

    await queue.add(1, job_id="job")
    retry = RetryDefaults(max_attempts=5, delay_ms=400)
    async with working(queue, fail, retry=retry) as consumer:
        await wait_until_async(lambda: consumer.metrics.failed[""] == 1)
    async with working(queue, fail, retry=RetryDefaults(max_attempts=1)):
        [dead_letter] = await wait_until_async(queue.dead_letters)
    assert (dead_letter.reason, dead_letter.attempts) == ("retries_exhausted", 1)
    assert "1 attempts failed, and max_attempts was lowered to 1" in dead_letter.error


async def test_a_batch_counts_a_job_that_is_too_large_for_the_worker_as_dead(
    queue: AsyncQueue,
) -> None:
    """The limit of the worker is below that of the producer."""
    await queue.add_batch([{"x": "a" * 5000}, {"x": "b"}], batch_id="b")

    async def handle(job: Any) -> None: ...

    async with working(queue, handle, max_payload_bytes=1000):
        progress = await queue.wait_batch("b")
    assert (progress.done, progress.dead, progress.finished) == (1, 1, True)
    assert await queue.dead_job_ids("b") == ["batch:b:0:0"]
    [dead_letter] = await queue.dead_letters()
    assert dead_letter.reason == "oversize_payload"
