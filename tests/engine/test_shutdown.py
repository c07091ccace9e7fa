"""A stop ends reading at once, lets what runs finish, hands the rest back, and leaves no lock."""

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
from tests.engine.conftest import PUNCTUAL, empty, settings, told, until, working
from tests.support.servers import RedisServer


async def test_what_runs_finishes_and_what_waits_is_handed_back_at_once(
    queue: AsyncQueue,
) -> None:
    go_on = asyncio.Event()
    began: list[int] = []

    async def first(job) -> None:
        began.append(job.payload)
        if job.payload >= 20:
            await go_on.wait()

    elsewhere: list[tuple[int, int]] = []

    async def second(job) -> None:
        elsewhere.append((job.payload, job.attempt))

    # Quick ones first, so that it reads ahead; then it holds two at work and two in its buffer.
    await queue.add_many([{"payload": n} for n in range(24)])
    consumer = Consumer(queue, first, settings(concurrency=2))
    running = asyncio.create_task(consumer.run())
    await until(lambda: len(began) == 22)
    consumer.stop()
    started = time.monotonic()
    async with working(queue, second):
        # At once, and not when idle entries may be claimed, after half a minute.
        await until(lambda: len(elsewhere) == 2)
        assert time.monotonic() - started < 20
        assert not running.done()
        go_on.set()
        await asyncio.wait_for(running, 5)
        await until(lambda: empty(queue))
    # Neither of them was begun, so no attempt is lost.
    assert sorted(elsewhere) == [(n, 0) for n in range(24) if n not in began]
    assert sorted([*began, *(n for n, _ in elsewhere)]) == list(range(24))


async def test_a_stop_is_heard_while_every_worker_is_busy(queue: AsyncQueue) -> None:
    """The reader waits for room, not for the server: that must not hold up the stop."""
    began: list[int] = []

    async def endless(job) -> None:
        began.append(job.payload)
        await asyncio.sleep(600)

    await queue.add_many([{"payload": n} for n in range(6)])
    consumer = Consumer(
        queue, endless, settings(concurrency=2, shutdown_timeout=timedelta(seconds=0.3))
    )
    running = asyncio.create_task(consumer.run())
    await until(lambda: len(began) == 2)
    started = time.monotonic()
    consumer.stop()
    await asyncio.wait_for(running, 5)
    assert time.monotonic() - started < 3
    depth = await queue.depth()
    assert (depth.waiting, depth.running, depth.consumers) == (6, 0, 0)


async def test_what_does_not_finish_in_time_is_cut_off_and_runs_elsewhere(
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
        await until(lambda: began)
    assert ended == ["cleaned up"]
    assert "1 jobs are cut off" in caplog.text
    attempts: list[int] = []

    async def again(job) -> None:
        attempts.append(job.attempt)

    async with working(queue, again):
        await until(lambda: attempts)
    assert attempts == [1]  # the run that was cut off had begun: it counts
    assert await told(queue, "j") == ["active", "active", "completed"]


@pytest.mark.parametrize("stubborn", [False, True], ids=["willing", "in a long call"])
async def test_a_plain_handler_is_cut_off_too(queue: AsyncQueue, stubborn: bool) -> None:
    began = threading.Event()
    release = threading.Event()

    def slow(job) -> None:
        began.set()
        if stubborn:
            release.wait(30)  # nothing reaches a thread inside of such a call
        while not release.is_set():
            time.sleep(0.005)

    await queue.add(1, job_id="j")
    started = 0.0
    async with working(queue, slow, shutdown_timeout=timedelta(milliseconds=100)) as consumer:
        await until(began.is_set)
        started = time.monotonic()
        consumer.stop()
    assert time.monotonic() - started < 5
    attempts: list[int] = []

    async def again(job) -> None:
        attempts.append(job.attempt)

    async with working(queue, again):
        await until(lambda: attempts)
        release.set()
        await until(lambda: empty(queue))
    assert attempts == [1]


async def test_locks_are_released_and_the_next_one_leads_at_once(queue: AsyncQueue, client) -> None:
    ran: list[int] = []

    async def handle(job) -> None:
        ran.append(job.payload)

    async with working(queue, handle, scheduler=PUNCTUAL):
        await until(lambda: client.get(queue.keys.promoter_lock))
        await until(lambda: client.get(queue.keys.scheduler_lock))
    assert client.exists(queue.keys.promoter_lock, queue.keys.scheduler_lock) == 0


async def test_acks_and_events_are_flushed(queue: AsyncQueue) -> None:
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
    names = await told(queue)
    assert (names.count("active"), names.count("completed")) == (500, 500)


async def test_a_stop_from_another_thread_is_heard(queue: AsyncQueue) -> None:
    consumer = Consumer(queue, print, settings(block_timeout=timedelta(milliseconds=60_000)))
    running = asyncio.create_task(consumer.run())
    await until(lambda: queue.consumers())
    threading.Thread(target=consumer.stop).start()
    await asyncio.wait_for(running, 5)
    consumer.stop()  # once more is harmless


async def test_a_cancelled_run_hands_everything_back(queue: AsyncQueue) -> None:
    """asyncio.run cancels its main task on Ctrl-C; nothing may wait for the claim then."""
    began: list[int] = []

    async def slow(job) -> None:
        began.append(job.payload)
        await asyncio.sleep(60)

    await queue.add_many([{"payload": n} for n in range(10)])
    running = asyncio.create_task(Consumer(queue, slow, settings(concurrency=4)).run())
    await until(lambda: len(began) == 4)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    depth = await queue.depth()
    assert (depth.waiting, depth.running, depth.consumers) == (10, 0, 0)


async def test_a_part_that_fails_ends_them_all_and_is_raised(
    queue: AsyncQueue, monkeypatch
) -> None:
    from airflow_provider_chasqui.engine.heartbeat import Heartbeat

    async def broken(self: Any) -> None:
        raise RuntimeError("a fault of ours")

    began: list[int] = []

    async def slow(job) -> None:
        began.append(job.payload)
        await asyncio.sleep(60)

    monkeypatch.setattr(Heartbeat, "_listen", broken)
    await queue.add(1)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await asyncio.wait_for(Consumer(queue, slow, settings()).run(), 20)
    assert began
    depth = await queue.depth()
    assert (depth.waiting, depth.running) == (1, 0)


async def test_a_server_that_is_away_does_not_hold_up_the_stop(
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
            await until(lambda: consumer.running_jobs)
            server.pause()
            release.set()
            await until(lambda: not consumer.running_jobs)
            started = time.monotonic()
            consumer.stop()
            await asyncio.wait_for(running, 30)
            assert time.monotonic() - started < 16
            server.resume()
    assert "1 outcomes could not be settled" in caplog.text


async def test_a_job_of_one_run_that_is_cut_off_is_dead_and_says_why(queue: AsyncQueue) -> None:
    began: list[int] = []

    async def slow(job) -> None:
        began.append(1)
        await asyncio.sleep(60)

    await queue.add(1, retry=RetryPolicy(1))
    async with working(queue, slow, shutdown_timeout=timedelta(0)):
        await until(lambda: began)
    async with working(queue, slow):
        [letter] = await until(queue.dead_letters)
    assert began == [1]
    assert "cut off" in letter.error
    assert letter.attempts == 1
