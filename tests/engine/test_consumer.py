"""A consumer takes jobs, runs them, and leaves nothing behind."""

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
from tests.engine.conftest import empty, settings, told, until, working


async def test_a_thousand_jobs_run_once_each_and_leave_nothing(queue: AsyncQueue) -> None:
    ran: list[int] = []

    async def handle(job) -> None:
        ran.append(job.payload)

    await queue.add_many([{"payload": number} for number in range(1000)])
    async with working(queue, handle, ConsumerConfig()):
        await until(lambda: len(ran) == 1000)
    assert sorted(ran) == list(range(1000))
    depth = await queue.depth()
    assert (depth.waiting, depth.running, depth.consumers) == (0, 0, 0)


async def test_ten_lines_are_a_worker(server, queue_name) -> None:
    """The public API from a plain script: names of the server and the queue, a function."""
    seen = asyncio.Event()

    async def handle(job) -> None:
        assert (job.name, job.payload) == ("welcome", {"to": "ada"})
        seen.set()

    consumer = Consumer(queue_name, handle, server=server.url)
    working = asyncio.create_task(consumer.run())
    async with AsyncQueue(queue_name, server.url) as queue:
        await queue.add({"to": "ada"}, job_name="welcome")
        await asyncio.wait_for(seen.wait(), 10)
        consumer.stop()
        await asyncio.wait_for(working, 10)
        assert await empty(queue)


async def test_counts_and_events_tell_what_happened(queue: AsyncQueue) -> None:
    async def handle(job) -> None:
        if job.payload:
            raise ValueError("no")

    good = (await queue.add(0)).job_id
    bad = (await queue.add(1)).job_id
    async with working(queue, handle, settings()) as consumer:
        await until(lambda: consumer.metrics.failed[""] >= 2)
        counts = consumer.metrics
        assert counts.completed[""] == 1
        assert counts.retried[""] >= 1
        assert counts.backoff[""].total > 0
        assert sum(counts.read_sizes.counts) >= 2
    assert await told(queue, good) == ["active", "completed"]
    assert (await told(queue, bad))[:3] == ["active", "failed", "retry-scheduled"]


async def test_events_can_be_switched_off(queue: AsyncQueue) -> None:
    async def handle(job) -> None: ...

    await queue.add(1)
    async with working(queue, handle, events=False):
        await until(lambda: empty(queue))
    assert await told(queue) == []


async def test_a_stop_before_the_start_is_heard(queue: AsyncQueue) -> None:
    consumer = Consumer(queue, print, settings())
    consumer.stop()
    await asyncio.wait_for(consumer.run(), 5)


async def test_a_wrong_login_ends_it_at_the_first_contact(redis86_binary, queue_name) -> None:
    from tests.support.servers import RedisServer

    with RedisServer.start(redis86_binary, "--requirepass", "right") as server:
        url = server.url.replace("redis://", "redis://:wrong@")
        with pytest.raises(AuthenticationFailed):
            await asyncio.wait_for(Consumer(queue_name, print, server=url).run(), 10)


async def test_a_foreign_key_under_its_name_ends_it_at_the_first_contact(
    queue: AsyncQueue, client
) -> None:
    client.set(queue.keys.stream, "mine")
    with pytest.raises(KeyTypeMismatch):
        await asyncio.wait_for(Consumer(queue, print, settings()).run(), 10)


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"read_count": True},
        {"claim_after": timedelta(milliseconds=0)},
        {"group": ""},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong) -> None:
    with pytest.raises(InvalidArgument):
        settings(**wrong)
