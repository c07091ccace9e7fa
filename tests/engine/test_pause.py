"""A paused queue or job name starts no jobs; none is lost, repeated or reordered."""

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
from airflow_provider_chasqui.core.commands import flow_control
from airflow_provider_chasqui.core.commands.flow_control import PauseState
from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.engine.conftest import PUNCTUAL, empty, event_names, working
from tests.support.waiting import wait_until_async

# The heartbeat notices a pause within a second. A loaded machine may need longer.
NOTICED_S = 1.6


def recorder(ran: list[Any]) -> Callable[[Any], Awaitable[None]]:
    async def handler(job: Any) -> None:
        ran.append(job.payload)

    return handler


def paused_worker(consumer: Any) -> bool:
    return bool(consumer._runtime.state.paused)


async def test_the_state_of_pauses(queue: AsyncQueue) -> None:
    assert await queue.paused() == PauseState()
    assert not await queue.paused()
    await queue.pause()
    await queue.pause()
    assert await queue.paused() == PauseState(queue=True)
    await queue.pause(job_name="a")
    await queue.pause(job_name="")
    state = await queue.paused()
    assert state == PauseState(True, frozenset({"a", ""}))
    depth = await queue.depth()
    assert (depth.paused, depth.paused_job_names) == (True, ("", "a"))
    await queue.resume()
    await queue.resume()
    await queue.resume(job_name="a")
    await queue.resume(job_name="never paused")
    assert await queue.paused() == PauseState(job_names=frozenset({""}))
    assert not (await queue.depth()).paused


async def test_the_key_of_the_queue_is_that_of_chasquimq(queue: AsyncQueue) -> None:
    await queue.pause()
    key = f"{{chasqui:{queue.name}}}:paused"
    ttl = await queue.client.execute(redis_command("PTTL", key, parse=as_int))
    assert ttl == -1
    # ChasquiMQ tests only whether the key exists, so any value counts.
    await queue.client.execute(redis_command("SET", key, "true", parse=lambda _: None))
    assert (await queue.paused()).queue


async def test_a_worker_that_starts_during_a_pause_runs_nothing(queue: AsyncQueue) -> None:
    ran: list[int] = []
    await queue.add_many([{"payload": number} for number in range(5)])
    await queue.pause()
    async with working(queue, recorder(ran)) as consumer:
        await wait_until_async(lambda: paused_worker(consumer))
        await queue.add(5)
        await asyncio.sleep(0.6)
        assert ran == []
        depth = await queue.depth()
        assert (depth.waiting, depth.running) == (6, 0), "the jobs must stay in the queue"
        await queue.resume()
        await wait_until_async(lambda: empty(queue))
    assert ran == list(range(6))


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_prefetched_jobs_wait_in_order_and_running_ones_end(
    queue: AsyncQueue, kind: str
) -> None:
    ran: list[tuple[int, int]] = []
    blocked = asyncio.Event()
    release = asyncio.Event()

    async def handler(job: Any) -> None:
        if job.payload == 60:
            blocked.set()
            await release.wait()
        ran.append((job.payload, job.attempt))

    loop = asyncio.get_running_loop()

    def plain_handler(job: Any) -> None:
        if job.payload == 60:
            loop.call_soon_threadsafe(blocked.set)
            while not release.is_set():
                time.sleep(0.005)
        ran.append((job.payload, job.attempt))

    await queue.add_many([{"payload": number} for number in range(300)])
    async with working(
        queue, handler if kind == "async" else plain_handler, concurrency=1
    ) as consumer:
        await asyncio.wait_for(blocked.wait(), 20)
        await queue.pause()
        await wait_until_async(lambda: paused_worker(consumer))
        release.set()
        await wait_until_async(lambda: len(ran) == 61)
        await asyncio.sleep(NOTICED_S)  # claims are renewed and cancellations checked meanwhile
        assert len(ran) == 61, "a job was started during the pause"
        await queue.resume()
        await wait_until_async(lambda: empty(queue))
    assert ran == [(number, 0) for number in range(300)]


async def test_a_worker_with_held_jobs_stops_and_returns_them(queue: AsyncQueue) -> None:
    ran: list[tuple[int, int]] = []
    blocked, release = asyncio.Event(), asyncio.Event()

    async def handler(job: Any) -> None:
        if job.payload == 60:
            blocked.set()
            await release.wait()
        ran.append((job.payload, job.attempt))

    await queue.add_many([{"payload": number} for number in range(200)])
    async with working(queue, handler, concurrency=1) as consumer:
        await asyncio.wait_for(blocked.wait(), 20)
        await queue.pause()
        await wait_until_async(lambda: paused_worker(consumer))
        release.set()
        await wait_until_async(lambda: len(ran) == 61)
    depth = await queue.depth()
    assert (depth.waiting, depth.running) == (139, 0)
    await queue.resume()
    async with working(queue, handler):
        await wait_until_async(lambda: empty(queue))
    assert sorted(ran) == [(number, 0) for number in range(200)]


async def test_cancelled_jobs_are_dropped_during_a_pause(queue: AsyncQueue) -> None:
    ran: list[int] = []
    blocked, release = asyncio.Event(), asyncio.Event()

    async def handler(job: Any) -> None:
        if job.payload == 60:
            blocked.set()
            await release.wait()
        ran.append(job.payload)

    await queue.add_batch(range(200), batch_id="b")
    async with working(queue, handler, concurrency=1) as consumer:
        await asyncio.wait_for(blocked.wait(), 20)
        assert len(consumer._runtime.state.in_flight) > 1, "nothing is prefetched"
        await queue.pause()
        await wait_until_async(lambda: paused_worker(consumer))
        release.set()
        await queue.cancel_batch("b")
        await wait_until_async(lambda: not consumer._runtime.state.in_flight)
    assert ran == list(range(61))


async def test_delayed_and_repeated_jobs_are_enqueued_during_a_pause(queue: AsyncQueue) -> None:
    ran: list[Any] = []
    await queue.pause()
    await queue.add("later", delay=timedelta(milliseconds=50))
    await queue.repeat("again", Every(200), limit=1)
    async with working(queue, recorder(ran), scheduler=PUNCTUAL):
        await wait_until_async(lambda: _waiting(queue, 2))
        assert ran == []
        await queue.resume()
        await wait_until_async(lambda: len(ran) == 2)


async def _waiting(queue: AsyncQueue, count: int) -> bool:
    return (await queue.depth()).waiting == count


async def test_a_pause_interrupts_a_blocked_read(queue: AsyncQueue) -> None:
    """Otherwise a worker would take a job that it must not start."""
    async with working(queue, recorder([]), block_timeout=timedelta(seconds=30)) as consumer:
        await queue.add("first")
        await wait_until_async(lambda: empty(queue))
        await queue.pause()
        await wait_until_async(lambda: paused_worker(consumer))
        await asyncio.sleep(0.3)
        assert "drained" not in await event_names(queue), "the read was interrupted, not empty"
        await queue.add("second")
        await asyncio.sleep(0.3)
        assert (await queue.depth()).waiting == 1
        await queue.resume()
        await wait_until_async(lambda: empty(queue), seconds=10)


async def test_jobs_of_a_paused_name_make_way_for_others_and_come_back(queue: AsyncQueue) -> None:
    ran: list[Any] = []
    await queue.pause(job_name="broken")
    await queue.add_many(
        [
            {"payload": (name, number), "job_name": name}
            for number in range(300)
            for name in ("broken", "good")
        ]
    )
    async with working(queue, recorder(ran), concurrency=1) as consumer:
        await wait_until_async(lambda: _depth_is(queue, waiting=0, running=0, delayed=300))
        assert ran == [["good", number] for number in range(300)]
        assert consumer.metrics.counts["parked"] == 300
        assert (await queue.depth()).next_due_ms is None
        await queue.add(["good", -1], job_name="good")
        await wait_until_async(lambda: ran[-1] == ["good", -1])
        await queue.resume(job_name="broken")
        await wait_until_async(lambda: empty(queue))
    assert ran[301:] == [["broken", number] for number in range(300)]
    assert (await queue.depth()).dead == 0


async def _depth_is(queue: AsyncQueue, **counts: int) -> bool:
    depth = await queue.depth()
    return all(getattr(depth, name) == count for name, count in counts.items())


async def test_parked_jobs_keep_their_attempts_and_can_be_found_and_cancelled(
    queue: AsyncQueue,
) -> None:
    attempts: list[int] = []

    async def handler(job: Any) -> None:
        attempts.append(job.attempt)
        if len(attempts) == 1:
            await queue.pause(job_name="n")
            raise ValueError("the pause comes between the attempts")

    retry = RetryPolicy(5, Backoff.fixed(timedelta(seconds=3)))
    await queue.add(1, job_name="n", job_id="kept", retry=retry)
    async with working(queue, handler) as consumer:
        await wait_until_async(lambda: consumer.metrics.counts["parked"] == 1)
        assert attempts == [0]
        assert (await queue.job_status("kept")).state == "delayed"
        await queue.add(2, job_name="n", job_id="unwanted")
        await wait_until_async(lambda: consumer.metrics.counts["parked"] == 2)
        assert await queue.cancel("unwanted") == "cancelled"
        await queue.resume(job_name="n")
        await wait_until_async(lambda: empty(queue))
    assert attempts == [0, 1]


async def test_prefetched_jobs_of_a_paused_name_are_parked(queue: AsyncQueue) -> None:
    ran: list[int] = []
    blocked, release = asyncio.Event(), asyncio.Event()

    async def handler(job: Any) -> None:
        if job.payload == 60:
            blocked.set()
            await release.wait()
        ran.append(job.payload)

    await queue.add_many([{"payload": number, "job_name": "n"} for number in range(100)])
    async with working(queue, handler, concurrency=1) as consumer:
        await asyncio.wait_for(blocked.wait(), 20)
        await queue.pause(job_name="n")
        await wait_until_async(lambda: consumer.metrics.counts["parked"] == 39)
        release.set()
        await wait_until_async(lambda: _depth_is(queue, waiting=0, running=0, delayed=39))
        assert len(ran) == 61
        await queue.resume(job_name="n")
        await wait_until_async(lambda: empty(queue))
    assert ran == list(range(100))


async def test_workers_finish_a_resume_whose_caller_died(queue: AsyncQueue) -> None:
    ran: list[int] = []
    await queue.pause(job_name="n")
    await queue.add_many([{"payload": number, "job_name": "n"} for number in range(20)])
    async with working(queue, recorder(ran)):
        await wait_until_async(lambda: _depth_is(queue, waiting=0, running=0, delayed=20))
        flow = flow_control.resume(queue.keys, "n")
        await queue.client.execute(next(flow))  # the caller dies after its first command
        flow.close()
        await wait_until_async(lambda: empty(queue))
        await wait_until_async(lambda: _no_names(queue))
    assert sorted(ran) == list(range(20))


async def _no_names(queue: AsyncQueue) -> bool:
    return not await queue.client.execute(
        redis_command("EXISTS", queue.keys.paused_names, parse=as_int)
    )


WORKER = """
import asyncio, sys
from datetime import timedelta
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue_async import AsyncQueue

async def handler(job):
    print(job.payload, flush=True)
    await asyncio.sleep(0.001)

async def main(url, queue_name, dialect):
    async with AsyncQueue(queue_name, url, dialect=dialect) as queue:
        config = ConsumerConfig(concurrency=2, claim_after=timedelta(seconds=1))
        await Consumer(queue, handler, config).run()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_no_job_is_lost_if_workers_are_killed_while_names_are_paused_and_resumed(
    queue: AsyncQueue, server: Any
) -> None:
    total = 2000
    await queue.add_batch(range(total), batch_id="b", job_name="n")
    arguments = [sys.executable, "-c", WORKER, server.url, queue.name, server.dialect]
    for action in (queue.pause, queue.resume, queue.pause):
        process = await asyncio.create_subprocess_exec(
            *arguments, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
        )
        try:
            if action is queue.pause:
                assert process.stdout
                await asyncio.wait_for(process.stdout.readline(), 60)
            await action(job_name="n")
            await asyncio.sleep(1.2)
        finally:
            process.kill()
            await process.wait()
    await queue.resume(job_name="n")
    ran: list[int] = []
    async with working(queue, recorder(ran), claim_after=timedelta(seconds=1)):
        progress = await queue.wait_batch("b", timeout=timedelta(seconds=60))
    assert (progress.done, progress.dead) == (total, 0)


async def test_a_queue_without_pauses_costs_two_reads_per_second(
    queue: AsyncQueue, client: Any
) -> None:
    ran: list[int] = []
    async with working(queue, recorder(ran)):
        client.config_resetstat()
        started = time.monotonic()
        await queue.add_batch(range(3000), batch_id="b")
        await queue.wait_batch("b")
        seconds = time.monotonic() - started
    statistics = client.info("commandstats")
    # The heartbeat asks for cancellations, the pause and the paused names in each tick.
    assert statistics.get("cmdstat_exists", {"calls": 0})["calls"] <= 2 * (seconds + 2) + 2
    assert statistics.get("cmdstat_hgetall", {"calls": 0})["calls"] <= 100
