"""Cancel and add with the same job id: the server decides which came first, not the clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.codec import encode_delayed_member, encode_job
from airflow_provider_chasqui.core.commands import cancellation, consumer_group, wait
from airflow_provider_chasqui.core.job import NewJob
from airflow_provider_chasqui.engine.cancellations import Cancellations
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.engine.conftest import working
from tests.support.manual_worker import take
from tests.support.waiting import wait_until_async

HOUR = timedelta(hours=1)
HOUR_MS = 3_600_000
# Differences of the clocks of producers to that of the server.
SKEWS = pytest.mark.parametrize("skew_ms", [-HOUR_MS, 0, HOUR_MS], ids=["behind", "same", "ahead"])


async def run_all(queue: AsyncQueue) -> list[Any]:
    """Run all jobs with a worker that reads the cancel requests; return the payloads that ran."""
    ran: list[Any] = []

    async def handle(job: Any) -> None:
        ran.append(job.payload)

    async with working(queue, handle, concurrency=1):
        await queue.add("last", delay=timedelta(milliseconds=50))
        await wait_until_async(lambda: "last" in ran)
        await wait_until_async(lambda: _is_empty(queue))
    return [payload for payload in ran if payload != "last"]


async def _is_empty(queue: AsyncQueue) -> bool:
    depth = await queue.depth()
    return not (depth.waiting or depth.running or depth.delayed)


def producer(queue: AsyncQueue, server: Any, skew_ms: int = 0) -> Queue:
    """Return a queue whose clock stands still, so that all its calls are in one millisecond."""
    now_ms = time.time_ns() // 1_000_000 + skew_ms
    return Queue(queue.name, server.url, dialect=server.dialect, clock=lambda: now_ms)


def add_one(queue: Queue, **options: Any) -> None:
    assert queue.add("new", job_id="x", **options).created


def add_many(queue: Queue, **options: Any) -> None:
    jobs = [NewJob("other"), NewJob("new", job_id="x", **options), NewJob("y", job_id="y")]
    assert all(result.created for result in queue.add_many(jobs))


@SKEWS
@pytest.mark.parametrize("add", [add_one, add_many])
async def test_a_job_that_is_added_after_the_cancel_runs(
    queue: AsyncQueue, server: Any, skew_ms: int, add: Callable[..., None]
) -> None:
    with producer(queue, server, skew_ms) as other:
        other.add("old", job_id="x")
        assert await queue.cancel("x") == "requested"
        add(other)
    ran = await run_all(queue)
    assert "old" not in ran
    assert ran.count("new") == 1


@pytest.mark.parametrize("add", [add_one, add_many])
async def test_a_delayed_job_that_is_added_after_the_cancel_runs(
    queue: AsyncQueue, server: Any, add: Callable[..., None]
) -> None:
    with producer(queue, server, -HOUR_MS) as other:
        other.add("old", job_id="x")
        assert await queue.cancel("x") == "requested"
        add(other, delay=HOUR + timedelta(milliseconds=1))
    ran = await run_all(queue)
    assert "old" not in ran
    assert ran.count("new") == 1


@SKEWS
async def test_a_job_that_is_added_before_the_cancel_does_not_run(
    queue: AsyncQueue, server: Any, skew_ms: int
) -> None:
    with producer(queue, server, skew_ms) as other:
        for payload in ("first", "second"):
            other.add(payload, job_id="x")
            assert await queue.cancel("x") == "requested"
    assert await run_all(queue) == []


async def test_a_retry_of_a_cancelled_job_does_not_run_and_a_new_one_does(
    queue: AsyncQueue, server: Any
) -> None:
    """The handler fails before the worker has noticed the cancel request."""
    with producer(queue, server) as other:
        other.add("old", job_id="x")
        (entry,) = take(other)
        assert other.cancel("x") == "requested"
        other.add("new", job_id="x")
        member = encode_delayed_member(b"", encode_job(entry.job, attempt=1))
        command = consumer_group.schedule_retries(
            other.keys, "default", "w", [(entry.id, 1, member)]
        )
        assert other.client.execute(command) == [True]
    assert await run_all(queue) == ["new"]


async def test_a_second_cancel_is_not_cleared_with_the_first(
    queue: AsyncQueue, server: Any
) -> None:
    """The worker drops the first job, and the id is used and cancelled again in between."""
    with producer(queue, server) as other:
        other.add("first", job_id="x")
        other.cancel("x")
        cancellations = Cancellations(queue.keys)
        await cancellations.refresh(queue.client)
        (entry,) = take(other)
        assert await cancellations.find(queue.client, [entry]) == [entry]
        other.add("second", job_id="x")
        other.cancel("x")
        requests = cancellations.pop_requests(["x"])
        assert len(requests) == 1
        await queue.client.execute(cancellation.clear_requests(queue.keys, requests))
        other.client.execute(consumer_group.ack(other.keys, "default", [entry.id]))
    assert await run_all(queue) == []


async def test_a_request_stays_while_another_job_with_the_id_waits(
    queue: AsyncQueue, server: Any
) -> None:
    """The worker drops one job and deletes the request before it reads the other one."""
    with producer(queue, server) as other:
        entries = []
        for payload in ("first", "second"):
            other.add(payload, job_id="x")
            entries += take(other)
        other.cancel("x")
        cancellations = Cancellations(queue.keys)
        await cancellations.refresh(queue.client)
        for remaining in (1, 0):
            entry = entries.pop(0)
            assert await cancellations.find(queue.client, [entry]) == [entry]
            other.client.execute(consumer_group.ack(other.keys, "default", [entry.id]))
            requests = cancellations.pop_requests(["x"])
            await queue.client.execute(cancellation.clear_requests(queue.keys, requests))
            await cancellations.refresh(queue.client)
            assert cancellations.has_requests == bool(remaining)


@pytest.mark.parametrize("first_delay", [None, HOUR], ids=["requested", "removed"])
@pytest.mark.parametrize("second_delay", [None, timedelta(milliseconds=1)], ids=["now", "delayed"])
async def test_a_cancel_frees_a_deduplicated_id(
    queue: AsyncQueue, first_delay: timedelta | None, second_delay: timedelta | None
) -> None:
    options: dict[str, Any] = {"job_id": "x", "dedup_ttl": HOUR}
    assert (await queue.add("old", **options, delay=first_delay)).created
    assert not (await queue.add("duplicate", **options)).created
    result = await queue.cancel("x")
    assert result == ("requested" if first_delay is None else "cancelled")
    assert (await queue.add("new", **options, delay=second_delay)).created
    assert not (await queue.add("duplicate", **options)).created
    assert await run_all(queue) == ["new"]


async def test_a_wait_for_a_job_does_not_return_the_cancel_of_an_earlier_one(
    queue: AsyncQueue,
) -> None:
    await queue.add("old", job_id="x")
    await queue.cancel("x")
    (observation,) = await queue.client.run_flow(wait.observe_jobs(queue.keys, ["x"]))
    assert observation.cancelled
    await queue.add("new", job_id="x")
    (observation,) = await queue.client.run_flow(wait.observe_jobs(queue.keys, ["x"]))
    assert not observation.cancelled
