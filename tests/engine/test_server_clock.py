"""Tests of workers while the clock of the server jumps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from airflow_provider_chasqui.core.codec import encode_job
from airflow_provider_chasqui.core.job import Job
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.conftest import Server
from tests.engine.conftest import empty, working
from tests.support.redis_state import plain_client
from tests.support.server_clock import MovableClock
from tests.support.waiting import wait_until_async

CLAIM_AFTER = timedelta(seconds=2)
JOBS = 6


@pytest.fixture
async def queue(clock_server: Server, queue_name: str) -> AsyncIterator[AsyncQueue]:
    async with AsyncQueue(queue_name, clock_server.url, dialect=clock_server.dialect) as queue:
        yield queue


async def renewals(consumers: list[Consumer], count: int) -> None:
    """Wait until every claim was renewed several times. Workers renew every 0.7 s."""

    def renewed() -> int:
        return sum(consumer.metrics.counts["claims_renewed"] for consumer in consumers)

    before = renewed()
    await wait_until_async(lambda: renewed() >= before + count * JOBS)


@pytest.mark.parametrize("seconds", [3, 3600])
async def test_running_jobs_are_not_claimed_after_a_jump_of_the_clock(
    queue: AsyncQueue, server_clock: MovableClock, caplog: pytest.LogCaptureFixture, seconds: int
) -> None:
    """To the server, every running job looks abandoned until its worker renews the claim."""
    caplog.set_level(logging.WARNING, "chasqui")
    started: list[str] = []
    finish = asyncio.Event()

    async def handle(job) -> None:
        started.append(job.id)
        await finish.wait()

    async with AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(working(queue, handle, claim_after=CLAIM_AFTER))
            for _ in range(2)
        ]
        ids = [f"job-{number}" for number in range(JOBS)]
        await queue.add_many([{"payload": 1, "job_id": job_id} for job_id in ids])
        await wait_until_async(lambda: len(started) == JOBS)
        server_clock.move(seconds)
        await renewals(consumers, 1)
        server_clock.move(seconds)  # before the workers claim again
        await renewals(consumers, 5)  # longer than `claim_after`: they claim again
        finish.set()
        await wait_until_async(lambda: empty(queue))
        assert sorted(started) == ids
        for consumer in consumers:
            assert consumer.metrics.counts["reclaimed"] == 0
            assert consumer.metrics.counts["claims_lost"] == 0
    assert "the clock of the server jumped forward" in caplog.text


async def test_the_jobs_of_a_dead_worker_are_claimed_after_a_jump_of_the_clock(
    queue: AsyncQueue, clock_server: Server, server_clock: MovableClock
) -> None:
    started: list[str] = []

    async def handle(job) -> None:
        started.append(job.id)

    async with working(queue, handle, claim_after=CLAIM_AFTER):
        await queue.add(1, job_id="first")
        await wait_until_async(lambda: started == ["first"])
        # Read by a worker that then dies.
        with plain_client(clock_server.url) as client:
            stream = queue.keys.stream
            pipeline = client.pipeline()
            pipeline.xadd(stream, {"d": encode_job(Job("second", b"\x01", 1))})
            pipeline.xreadgroup("default", "dead", {stream: ">"})
            pipeline.execute()
        for seconds in (3600, -7200, 7200):
            server_clock.move(seconds)
        await wait_until_async(lambda: started == ["first", "second"])
