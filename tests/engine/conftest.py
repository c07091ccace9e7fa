"""Fixtures and helpers of the engine tests: queues, consumers and waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.config import ConsumerConfig, PromoterConfig, SchedulerConfig
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.conftest import SERVERS, Server

PROMPT = PromoterConfig(
    poll_interval=timedelta(milliseconds=20),
    standby_poll_interval=timedelta(milliseconds=100),
    lock_ttl=timedelta(seconds=1),
)
PUNCTUAL = SchedulerConfig(poll_interval=timedelta(milliseconds=100), lock_ttl=timedelta(seconds=1))


@pytest.fixture(params=["redis8-native", "valkey"])
def server(request: pytest.FixtureRequest) -> Server:
    """One server per dialect. Differences within a dialect are tested in tests/lua."""
    fixture, dialect = SERVERS[request.param]
    return Server(request.getfixturevalue(fixture).url, dialect)


@pytest.fixture
async def queue(server: Server, queue_name: str) -> AsyncIterator[AsyncQueue]:
    async with AsyncQueue(queue_name, server.url, dialect=server.dialect) as queue:
        yield queue


def settings(**changes: Any) -> ConsumerConfig:
    """Return consumer settings with short timeouts."""
    defaults: dict[str, Any] = {
        "block_timeout": timedelta(milliseconds=500),
        "promoter": PROMPT,
        "scheduler": None,
    }
    return ConsumerConfig(**defaults | changes)


@asynccontextmanager
async def working(
    queue: AsyncQueue, handler: Any, config: ConsumerConfig | None = None, **changes: Any
) -> AsyncIterator[Consumer]:
    """Run a consumer during the block; raise its error, if it fails."""
    consumer = Consumer(queue, handler, config or settings(**changes))
    task = asyncio.create_task(consumer.run())
    await asyncio.sleep(0)
    try:
        yield consumer
        if task.done():
            task.result()
    finally:
        consumer.stop()
        await asyncio.wait_for(task, 40)


async def empty(queue: AsyncQueue) -> bool:
    """Return whether no job is waiting, running or delayed."""
    depth = await queue.depth()
    return not (depth.waiting or depth.running or depth.delayed)


async def event_names(queue: AsyncQueue, job_id: str | None = None) -> list[str]:
    """Return the names of all events, or of the events of one job, in order."""
    events = await queue.events(limit=10_000)
    return [event.name for event in events if job_id in (None, event.job_id)]
