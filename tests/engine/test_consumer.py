"""A consumer takes jobs, runs them, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue import AsyncQueue
from tests.conftest import Server


@pytest.fixture
async def queue(server: Server, queue_name: str) -> AsyncIterator[AsyncQueue]:
    async with AsyncQueue(queue_name, server.url, dialect=server.dialect) as queue:
        yield queue


async def test_a_thousand_jobs_run_once_each_and_leave_nothing(queue: AsyncQueue) -> None:
    ran: list[int] = []
    all_ran = asyncio.Event()

    async def handle(job) -> None:
        ran.append(job.payload)
        if len(ran) == 1000:
            all_ran.set()

    await queue.add_many([{"payload": number} for number in range(1000)])
    consumer = Consumer(queue, handle, ConsumerConfig())
    working = asyncio.create_task(consumer.run())
    await asyncio.wait_for(all_ran.wait(), 20)
    consumer.stop()
    await working
    assert sorted(ran) == list(range(1000))
    depth = await queue.depth()
    assert (depth.waiting, depth.running, depth.consumers) == (0, 0, 0)
