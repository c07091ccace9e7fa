"""Tests of the shutdown: running jobs finish or are requeued, locks are released."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.retry import RetryPolicy
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.engine.conftest import PUNCTUAL, empty, event_names, settings, working
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until_async


async def test_running_jobs_finish_and_unstarted_jobs_are_requeued_at_once(
    queue: AsyncQueue,
) -> None:
    release = asyncio.Event()
    began: list[int] = []

    async def first(job) -> None:
        began.append(job.payload)
        if job.payload >= 20:
            await release.wait()

    second_runs: list[tuple[int, int]] = []

    async def second(job) -> None:
        second_runs.append((job.payload, job.attempt))

    # Fast jobs first, so that it prefetches; then two jobs run and two wait in its buffer.
    await queue.add_many([{"payload": n} for n in range(24)])
    consumer = Consumer(queue, first, settings(concurrency=2))
    running = asyncio.create_task(consumer.run())
    await wait_until_async(lambda: len(began) == 22)
    consumer.stop()
    started = time.monotonic()
    async with working(queue, second):
        # At once, and not after claim_after (30 s), when idle entries may be claimed.
        await wait_until_async(lambda: len(second_runs) == 2)
        assert time.monotonic() - started < 20
        assert not running.done()
        release.set()
        await asyncio.wait_for(running, 5)
        await wait_until_async(lambda: empty(queue))
    # Neither of them was started, so no attempt is counted.
    assert sorted(second_runs) == [(n, 0) for n in range(24) if n not in began]
    assert sorted([*began, *(n for n, _ in second_runs)]) == list(range(24))


async def test_a_stop_takes_effect_while_all_slots_are_busy(queue: AsyncQueue) -> None:
    """The reader waits for capacity, not for the server. That must not delay the stop."""
    began: list[int] = []

    async def endless(job) -> None:
        began.append(job.payload)
        await asyncio.sleep(600)

    await queue.add_many([{"payload": n} for n in range(6)])
    consumer = Consumer(
        queue, endless, settings(concurrency=2, shutdown_timeout=timedelta(seconds=0.3))
    )
    running = asyncio.create_task(consumer.run())
    await wait_until_async(lambda: len(began) == 2)
    started = time.monotonic()
    consumer.stop()
    await asyncio.wait_for(running, 5)
    assert time.monotonic() - started < 3
    depth = await queue.depth()
    assert (depth.waiting, depth.running, depth.consumers) == (6, 0, 0)


async def test_a_job_that_exceeds_the_shutdown_timeout_is_requeued(
    queue: AsyncQueue, caplog
) -> None:
    began: list[int] = []
    ended: list[str] = []

    async def slow(job) -> None:
        began.append(job.attempt)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cleaned up")

    await queue.add(1, job_id="j")
    async with working(queue, slow, shutdown_timeout=timedelta(milliseconds=100)):
        await wait_until_async(lambda: began)
    assert ended == ["cleaned up"]
    assert "cancelling 1 running jobs" in caplog.text
    attempts: list[int] = []

    async def again(job) -> None:
        attempts.append(job.attempt)

    async with working(queue, again):
        await wait_until_async(lambda: attempts)
    assert attempts == [1]  # the interrupted run counts as an attempt
    assert await event_names(queue, "j") == ["active", "active", "completed"]


@pytest.mark.parametrize("in_long_call", [False, True], ids=["interruptible", "in a long call"])
async def test_a_plain_handler_that_exceeds_the_shutdown_timeout_is_requeued(
    queue: AsyncQueue, in_long_call: bool
) -> None:
    began = threading.Event()
    release = threading.Event()

    def slow(job) -> None:
        began.set()
        if in_long_call:
            release.wait(30)  # a thread in such a call cannot be interrupted
        while not release.is_set():
            time.sleep(0.005)

    await queue.add(1, job_id="j")
    started = 0.0
    async with working(queue, slow, shutdown_timeout=timedelta(milliseconds=100)) as consumer:
        await wait_until_async(began.is_set)
        started = time.monotonic()
        consumer.stop()
    assert time.monotonic() - started < 5
    attempts: list[int] = []

    async def again(job) -> None:
        attempts.append(job.attempt)

    async with working(queue, again):
        await wait_until_async(lambda: attempts)
        release.set()
        await wait_until_async(lambda: empty(queue))
    assert attempts == [1]


async def test_leader_locks_are_released(queue: AsyncQueue, client) -> None:
    async def handle(job) -> None: ...

    async with working(queue, handle, scheduler=PUNCTUAL):
        await wait_until_async(lambda: client.get(queue.keys.promoter_lock))
        await wait_until_async(lambda: client.get(queue.keys.scheduler_lock))
    assert client.exists(queue.keys.promoter_lock, queue.keys.scheduler_lock) == 0


async def test_acks_and_events_are_written_before_the_run_returns(queue: AsyncQueue) -> None:
    ran: list[int] = []

    async def handle(job) -> None:
        ran.append(job.payload)
        if len(ran) == 500:
            consumer.stop()

    await queue.add_many([{"payload": n} for n in range(500)])
    consumer = Consumer(queue, handle, settings())
    await asyncio.wait_for(consumer.run(), 20)
    assert len(ran) == 500
    assert await empty(queue)
    names = await event_names(queue)
    assert (names.count("active"), names.count("completed")) == (500, 500)


async def test_a_stop_from_another_thread_takes_effect(queue: AsyncQueue) -> None:
    consumer = Consumer(queue, print, settings(block_timeout=timedelta(milliseconds=60_000)))
    running = asyncio.create_task(consumer.run())
    await wait_until_async(lambda: queue.consumers())
    threading.Thread(target=consumer.stop).start()
    await asyncio.wait_for(running, 5)
    consumer.stop()  # a second stop does nothing


async def test_a_cancelled_run_requeues_all_jobs(queue: AsyncQueue) -> None:
    """asyncio.run cancels its main task on Ctrl-C; the jobs must not wait for claim_after."""
    began: list[int] = []

    async def slow(job) -> None:
        began.append(job.payload)
        await asyncio.sleep(60)

    await queue.add_many([{"payload": n} for n in range(10)])
    running = asyncio.create_task(Consumer(queue, slow, settings(concurrency=4)).run())
    await wait_until_async(lambda: len(began) == 4)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    depth = await queue.depth()
    assert (depth.waiting, depth.running, depth.consumers) == (10, 0, 0)


async def test_a_component_that_fails_ends_the_consumer_and_is_raised(
    queue: AsyncQueue, monkeypatch
) -> None:
    from airflow_provider_chasqui.engine.heartbeat import Heartbeat

    async def broken(self: Any) -> None:
        raise RuntimeError("a bug in the heartbeat")

    began: list[int] = []

    async def slow(job) -> None:
        began.append(job.payload)
        await asyncio.sleep(60)

    monkeypatch.setattr(Heartbeat, "_check_cancellations", broken)
    await queue.add(1)
    with pytest.raises(RuntimeError, match="a bug in the heartbeat"):
        await asyncio.wait_for(Consumer(queue, slow, settings()).run(), 20)
    assert began
    depth = await queue.depth()
    assert (depth.waiting, depth.running) == (1, 0)


async def test_an_unreachable_server_does_not_delay_the_stop(
    redis86_binary, queue_name: str, caplog
) -> None:
    caplog.set_level(logging.WARNING, "chasqui")
    release = asyncio.Event()

    async def handle(job) -> None:
        await release.wait()

    with RedisServer.start(redis86_binary) as server:
        async with AsyncQueue(queue_name, server.url) as queue:
            await queue.add(1)
            consumer = Consumer(queue, handle, settings(scheduler=PUNCTUAL))
            running = asyncio.create_task(consumer.run())
            await wait_until_async(lambda: consumer.running_jobs)
            server.pause()
            release.set()
            await wait_until_async(lambda: not consumer.running_jobs)
            started = time.monotonic()
            consumer.stop()
            await asyncio.wait_for(running, 30)
            assert time.monotonic() - started < 16
            server.resume()
    assert "could not write 1 outcomes" in caplog.text


async def test_an_interrupted_job_with_one_attempt_is_dead_lettered_with_the_cause(
    queue: AsyncQueue,
) -> None:
    began: list[int] = []

    async def slow(job) -> None:
        began.append(1)
        await asyncio.sleep(60)

    await queue.add(1, retry=RetryPolicy(1))
    async with working(queue, slow, shutdown_timeout=timedelta(0)):
        await wait_until_async(lambda: began)
    async with working(queue, slow):
        [dead_letter] = await wait_until_async(queue.dead_letters)
    assert began == [1]
    assert "no attempt is left" in dead_letter.error
    assert dead_letter.attempts == 1
