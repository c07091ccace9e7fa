"""Tests of a whole consumer: it runs jobs and leaves an empty queue."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    InvalidArgument,
    KeyTypeMismatch,
)
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.engine.conftest import empty, event_names, settings, working
from tests.support.waiting import wait_until_async


async def test_a_thousand_jobs_run_once_each_and_leave_an_empty_queue(queue: AsyncQueue) -> None:
    ran: list[int] = []

    async def handle(job) -> None:
        ran.append(job.payload)

    await queue.add_many([{"payload": number} for number in range(1000)])
    async with working(queue, handle, ConsumerConfig()):
        await wait_until_async(lambda: len(ran) == 1000)
    assert sorted(ran) == list(range(1000))
    depth = await queue.depth()
    assert (depth.waiting, depth.running, depth.consumers) == (0, 0, 0)


async def test_a_short_script_is_a_worker(server, queue_name) -> None:
    """The public API of a script: a queue name, a server URL and a function."""
    handled = asyncio.Event()

    async def handle(job) -> None:
        assert (job.name, job.payload) == ("welcome", {"to": "ada"})
        handled.set()

    consumer = Consumer(queue_name, handle, server=server.url)
    running = asyncio.create_task(consumer.run())
    async with AsyncQueue(queue_name, server.url) as queue:
        await queue.add({"to": "ada"}, job_name="welcome")
        await asyncio.wait_for(handled.wait(), 10)
        consumer.stop()
        await asyncio.wait_for(running, 10)
        assert await empty(queue)


async def test_metrics_and_events_record_the_runs(queue: AsyncQueue) -> None:
    async def handle(job) -> None:
        if job.payload:
            raise ValueError("no")

    good = (await queue.add(0)).job_id
    bad = (await queue.add(1)).job_id
    async with working(queue, handle, settings()) as consumer:
        await wait_until_async(lambda: consumer.metrics.failed[""] >= 2)
        metrics = consumer.metrics
        assert metrics.completed[""] == 1
        assert metrics.retried[""] >= 1
        assert metrics.backoff[""].total > 0
        assert sum(metrics.read_sizes.counts) >= 2
    assert await event_names(queue, good) == ["active", "completed"]
    assert (await event_names(queue, bad))[:3] == ["active", "failed", "retry-scheduled"]


async def test_no_events_are_written_if_events_are_disabled(queue: AsyncQueue) -> None:
    async def handle(job) -> None: ...

    await queue.add(1)
    async with working(queue, handle, events=False):
        await wait_until_async(lambda: empty(queue))
    assert await event_names(queue) == []


async def test_a_stop_before_the_start_ends_the_run(queue: AsyncQueue) -> None:
    consumer = Consumer(queue, print, settings())
    consumer.stop()
    await asyncio.wait_for(consumer.run(), 5)


async def test_a_wrong_password_ends_the_consumer_at_the_first_connection(
    redis86_binary, queue_name
) -> None:
    from tests.support.servers import RedisServer

    with RedisServer.start(redis86_binary, "--requirepass", "right") as server:
        url = server.url.replace("redis://", "redis://:invalid@")
        with pytest.raises(AuthenticationFailed):
            await asyncio.wait_for(Consumer(queue_name, print, server=url).run(), 10)


async def test_a_key_of_another_type_ends_the_consumer_at_the_first_connection(
    queue: AsyncQueue, client
) -> None:
    client.set(queue.keys.stream, "mine")
    with pytest.raises(KeyTypeMismatch):
        await asyncio.wait_for(Consumer(queue, print, settings()).run(), 10)


@pytest.mark.parametrize(
    "invalid",
    [
        {"concurrency": 0},
        {"read_count": True},
        {"claim_after": timedelta(milliseconds=0)},
        {"group": ""},
    ],
)
def test_invalid_settings_are_rejected(invalid) -> None:
    with pytest.raises(InvalidArgument):
        settings(**invalid)
