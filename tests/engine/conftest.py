"""Consumers for the tests of the engine: started when asked for, stopped when the test ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
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
    """Once in each dialect; what differs between servers of one dialect is tested in tests/lua."""
    fixture, dialect = SERVERS[request.param]
    return Server(request.getfixturevalue(fixture).url, dialect)


@pytest.fixture
async def queue(server: Server, queue_name: str) -> AsyncIterator[AsyncQueue]:
    async with AsyncQueue(queue_name, server.url, dialect=server.dialect) as queue:
        yield queue


def settings(**changes: Any) -> ConsumerConfig:
    """A consumer's settings with short waits."""
    given: dict[str, Any] = {
        "block_timeout": timedelta(milliseconds=500),
        "promoter": PROMPT,
        "scheduler": None,
    }
    return ConsumerConfig(**given | changes)


@asynccontextmanager
async def working(
    queue: AsyncQueue, handler: Any, config: ConsumerConfig | None = None, **changes: Any
) -> AsyncIterator[Consumer]:
    """A consumer that works during the block; its failure fails the test."""
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


async def until(what: Callable[[], Any], seconds: float = 20) -> Any:
    """Wait until the answer is true and return it; the answer may be awaited."""
    deadline = time.monotonic() + seconds
    while True:
        answer = what()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError("it did not come to that in time")
        await asyncio.sleep(0.01)


async def empty(queue: AsyncQueue) -> bool:
    """Whether nothing waits, runs or is delayed."""
    depth = await queue.depth()
    return not (depth.waiting or depth.running or depth.delayed)


async def told(queue: AsyncQueue, job_id: str | None = None) -> list[str]:
    """The names of the events, of one job or of all."""
    events = await queue.events(limit=10_000)
    return [event.name for event in events if job_id in (None, event.job_id)]
