"""Every waiter receives the outcome of its job or batch, with and without events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.codec import encode_job
from airflow_provider_chasqui.core.command import as_int, as_raw, redis_command
from airflow_provider_chasqui.core.commands import consumer_group, events
from airflow_provider_chasqui.core.errors import AuthenticationFailed, BatchNotFound
from airflow_provider_chasqui.core.event import event_fields
from airflow_provider_chasqui.core.job import StreamEntry
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.triggers._event_follower import (
    EventFollower,
    PollIntervals,
    shared_follower,
)
from tests.conftest import Server
from tests.support.waiting import wait_until_async

T = TypeVar("T")
# No polls and no scans within the time of a test: a result comes from an event or the first read.
EVENTS_ONLY = PollIntervals(poll_interval=60, first_scan_delay=60)
# Frequent polls and scans: a result needs no event.
FREQUENT_POLLS = PollIntervals(
    poll_interval=0.2, first_scan_delay=0.3, scan_interval=0.3, bit_delay=0.1
)


@asynccontextmanager
async def open_follower(
    server: Server, queue_name: str, intervals: PollIntervals
) -> AsyncIterator[EventFollower]:
    async def open_queue() -> AsyncQueue:
        return AsyncQueue(queue_name, server.url, dialect=server.dialect)

    async with shared_follower(server.url, queue_name, open_queue, lambda: intervals) as follower:
        yield follower


async def within(wait: Awaitable[T], seconds: float = 10) -> T:
    return await asyncio.wait_for(wait, seconds)


async def wait_until_started(follower: EventFollower) -> None:
    await wait_until_async(
        lambda: follower.recent_events is not None, message="the follower reads events"
    )


async def wait_until_polled(follower: EventFollower) -> None:
    await wait_until_started(follower)
    await wait_until_async(
        lambda: all(waiter.checked_at for waiter in follower.waiters()),
        message="the state of every waiter was read",
    )


def take(queue: Queue, count: int = 1000) -> list[StreamEntry]:
    """Read jobs as a worker does."""
    if not _group_exists(queue):
        queue.client.execute(consumer_group.create(queue.keys, "default"))
    command = consumer_group.read(queue.keys, "default", "w", count, 0, 60_000)
    entries = [
        consumer_group.parse_entry(raw_entry, 2**30) for raw_entry in queue.client.execute(command)
    ]
    return [entry for entry in entries if isinstance(entry, StreamEntry)]


def _group_exists(queue: Queue) -> bool:
    groups = queue.client.execute(
        redis_command("XINFO", "GROUPS", queue.keys.stream, parse=as_raw, default_if_missing=list)
    )
    return bool(groups)


def finish(queue: Queue, entry: StreamEntry, result: Any = None, emit: bool = True) -> None:
    """Complete a job as this project's worker does: ack with bits and result, then the event."""
    payload = None if result is None else encode_payload(result)
    completion = consumer_group.Completion(entry.id, entry.job.id, payload)
    command = consumer_group.ack_with_results(queue.keys, "default", [completion])
    assert queue.client.execute(command) == [True]
    if emit:
        emit_event(queue, "completed", entry.job.id)


def finish_without_bits(queue: Queue, entry: StreamEntry) -> None:
    """Complete a job as a ChasquiMQ 1.3.0 worker does: the ack and the event, nothing else."""
    ack(queue, entry)
    emit_event(queue, "completed", entry.job.id)


def ack(queue: Queue, entry: StreamEntry) -> None:
    command = consumer_group.ack(queue.keys, "default", [entry.id])
    assert queue.client.execute(command) == [True]


def move_to_dlq(queue: Queue, entry: StreamEntry, error: str = "boom", emit: bool = True) -> None:
    dead_letter = consumer_group.NewDeadLetter(
        entry.id,
        encode_job(entry.job),
        entry.job.name,
        "unrecoverable",
        error=error,
        attempts=1,
        failed_at_ms=5,
        job_id=entry.job.id,
    )
    command = consumer_group.move_to_dlq(queue.keys, "default", [dead_letter])
    assert queue.client.execute(command) == [True]
    if emit:
        emit_event(queue, "dlq", entry.job.id, reason="unrecoverable")


def emit_event(queue: Queue, name: str, job_id: str, **extras: Any) -> None:
    fields = event_fields(name, job_id, current_time_ms(), **extras)
    queue.client.execute(events.emit(queue.keys, [fields]))


def trim_events(queue: Queue) -> None:
    queue.client.execute(redis_command("XTRIM", queue.keys.events, "MAXLEN", 0, parse=as_int))


async def test_an_event_ends_the_wait_immediately(queue: Queue, connected: Server) -> None:
    batch = queue.add_batch([1])
    (job_id,) = batch.job_ids()
    async with open_follower(connected, queue.name, EVENTS_ONLY) as follower:
        waiting = asyncio.create_task(follower.wait_for_job(job_id, queue.last_event_id()))
        await wait_until_started(follower)
        (entry,) = take(queue)
        started = time.monotonic()
        finish(queue, entry)
        result = await within(waiting)
        assert (result.status, time.monotonic() - started < 5) == ("done", True)


@pytest.mark.parametrize("custom_id", [True, False])
async def test_a_job_that_finished_before_the_wait_is_found(
    queue: Queue, connected: Server, custom_id: bool
) -> None:
    events_after = queue.last_event_id()
    job_id = "custom" if custom_id else next(queue.add_batch([1]).job_ids())
    if custom_id:
        queue.add(1, job_id=job_id, dedup_ttl=timedelta(days=1))
    finish(queue, take(queue)[0])
    async with open_follower(connected, queue.name, EVENTS_ONLY) as follower:
        assert (await within(follower.wait_for_job(job_id, events_after))).status == "done"


async def test_a_new_waiter_receives_events_from_before_the_follower_started(
    queue: Queue, connected: Server
) -> None:
    events_after = queue.last_event_id()
    queue.add(1, job_id="early")
    finish(queue, take(queue)[0])
    later = queue.last_event_id()
    batch = queue.add_batch([1])
    async with open_follower(connected, queue.name, EVENTS_ONLY) as follower:
        other = asyncio.create_task(follower.wait_for_job(next(batch.job_ids()), later))
        await wait_until_started(follower)
        assert (await within(follower.wait_for_job("early", events_after))).status == "done"
        finish(queue, take(queue)[0])
        await within(other)


@pytest.mark.parametrize("custom_id", [True, False])
async def test_a_wait_ends_without_events(queue: Queue, connected: Server, custom_id: bool) -> None:
    """Bits and results are sufficient if events are trimmed or disabled."""
    job_id = "custom" if custom_id else next(queue.add_batch([1]).job_ids())
    if custom_id:
        queue.add(1, job_id=job_id)
    async with open_follower(
        connected, queue.name, PollIntervals(poll_interval=0.2, first_scan_delay=60)
    ) as follower:
        waiting = asyncio.create_task(follower.wait_for_job(job_id, queue.last_event_id()))
        await wait_until_polled(follower)
        finish(queue, take(queue)[0], result={"ok": 1}, emit=False)
        trim_events(queue)
        assert (await within(waiting)).status == "done"


@pytest.mark.parametrize("emit", [True, False])
@pytest.mark.parametrize("custom_id", [True, False])
async def test_the_result_of_a_dead_job_contains_its_error(
    queue: Queue, connected: Server, custom_id: bool, emit: bool
) -> None:
    job_id = "custom" if custom_id else next(queue.add_batch([1]).job_ids())
    if custom_id:
        queue.add(1, job_id=job_id)
    intervals = EVENTS_ONLY if emit else FREQUENT_POLLS
    async with open_follower(connected, queue.name, intervals) as follower:
        waiting = asyncio.create_task(follower.wait_for_job(job_id, queue.last_event_id()))
        await wait_until_started(follower)
        move_to_dlq(queue, take(queue)[0], "ValueError: no such address", emit=emit)
        result = await within(waiting)
    assert (result.status, result.reason) == ("dead", "unrecoverable")
    assert result.error == "ValueError: no such address"


async def test_a_cancelled_job_ends_the_wait(queue: Queue, connected: Server) -> None:
    batch = queue.add_batch([1], delay=timedelta(hours=1))
    (job_id,) = batch.job_ids()
    async with open_follower(connected, queue.name, FREQUENT_POLLS) as follower:
        waiting = asyncio.create_task(follower.wait_for_job(job_id, queue.last_event_id()))
        await wait_until_started(follower)
        assert queue.cancel(job_id) == "cancelled"
        assert (await within(waiting)).status == "dead"


@pytest.mark.parametrize("job_id", ["never-was", "batch:never-was:0:0"])
async def test_an_unknown_job_ends_the_wait(queue: Queue, connected: Server, job_id: str) -> None:
    async with open_follower(connected, queue.name, FREQUENT_POLLS) as follower:
        assert (await within(follower.wait_for_job(job_id, "0-0"))).status == "unknown"


async def test_a_job_that_stays_on_the_queue_is_not_reported_as_unknown(
    queue: Queue, connected: Server
) -> None:
    queue.add(1, job_id="here")
    queue.add(1, job_id="later", delay=timedelta(hours=1))
    async with open_follower(connected, queue.name, FREQUENT_POLLS) as follower:
        waits = [
            asyncio.create_task(follower.wait_for_job(job_id, "0-0"))
            for job_id in ("here", "later")
        ]
        done, _ = await asyncio.wait(waits, timeout=2)
        assert not done
        finish(queue, take(queue)[0])
        assert (await within(waits[0])).status == "done"
        waits[1].cancel()


async def test_a_replayed_job_is_awaited_again(queue: Queue, connected: Server) -> None:
    """The event of its earlier death is ignored."""
    events_after = queue.last_event_id()
    (job_id,) = queue.add_batch([1]).job_ids()
    move_to_dlq(queue, take(queue)[0])
    assert queue.replay_dead_letters().affected == 1
    async with open_follower(connected, queue.name, FREQUENT_POLLS) as follower:
        waiting = asyncio.create_task(follower.wait_for_job(job_id, events_after))
        done, _ = await asyncio.wait([waiting], timeout=1)
        assert not done
        finish(queue, take(queue)[0])
        assert (await within(waiting)).status == "done"


async def test_a_job_of_a_worker_without_bits_is_followed_by_events(
    queue: Queue, connected: Server, caplog: pytest.LogCaptureFixture
) -> None:
    events_after = queue.last_event_id()
    (job_id,) = queue.add_batch([1]).job_ids()
    finish_without_bits(queue, take(queue)[0])
    async with open_follower(
        connected, queue.name, PollIntervals(poll_interval=60, bit_delay=0.2)
    ) as follower:
        assert (await within(follower.wait_for_job(job_id, events_after))).status == "done"
    assert "sets no batch bits" in caplog.text


async def test_a_batch_of_workers_without_bits_finishes_even_if_events_are_trimmed(
    queue: Queue, connected: Server
) -> None:
    events_after = queue.last_event_id()
    batch = queue.add_batch(range(30))
    entries = take(queue)
    for entry in entries[:10]:
        finish_without_bits(queue, entry)
    async with (
        open_follower(connected, queue.name, FREQUENT_POLLS) as follower,
        aclosing(follower.batch_snapshots(batch.batch_id, events_after)) as snapshots,
    ):
        snapshot = await within(anext(snapshots))
        while snapshot.done < 10:
            snapshot = await within(anext(snapshots))
        for entry in entries[10:28]:
            ack(queue, entry)
        for entry in entries[28:]:
            move_to_dlq(queue, entry, emit=False)
        while not snapshot.finished:
            snapshot = await within(anext(snapshots))
        assert (snapshot.done, snapshot.dead, snapshot.lost) == (28, 2, 0)


async def test_a_batch_reports_its_progress_and_its_dead_jobs(
    queue: Queue, connected: Server
) -> None:
    events_after = queue.last_event_id()
    batch = queue.add_batch(range(100))
    observed = []
    async with (
        open_follower(connected, queue.name, EVENTS_ONLY) as follower,
        aclosing(follower.batch_snapshots(batch.batch_id, events_after)) as snapshots,
    ):
        first = await within(anext(snapshots))
        assert (first.done, first.progress.total) == (0, 100)
        for entry in take(queue, 60):
            finish(queue, entry)
        while (snapshot := await within(anext(snapshots))).done < 60:
            observed.append(snapshot)
        for entry in take(queue, 39):
            finish(queue, entry)
        move_to_dlq(queue, take(queue)[0])
        observed += [snapshot async for snapshot in snapshots]
    assert (observed[-1].done, observed[-1].dead) == (99, 1)
    assert observed[-1].finished


async def test_deleted_jobs_of_a_batch_are_reported_as_lost(
    queue: Queue, connected: Server
) -> None:
    batch = queue.add_batch(range(3))
    entries = take(queue)
    finish(queue, entries[0])
    for entry in entries[1:]:
        queue.client.execute(redis_command("XDEL", queue.keys.stream, entry.id, parse=as_int))
    async with (
        open_follower(connected, queue.name, FREQUENT_POLLS) as follower,
        aclosing(follower.batch_snapshots(batch.batch_id, "0-0")) as snapshots,
    ):
        snapshot = await within(anext(snapshots))
        while not snapshot.finished:
            snapshot = await within(anext(snapshots))
    assert (snapshot.done, snapshot.lost) == (1, 2)


async def test_the_wait_for_a_batch_that_does_not_exist_fails(
    queue: Queue, connected: Server
) -> None:
    async with open_follower(connected, queue.name, EVENTS_ONLY) as follower:
        with pytest.raises(BatchNotFound):
            await within(anext(follower.batch_snapshots("nothing", "0-0")))


async def test_a_batch_without_a_total_is_not_finished(queue: Queue, connected: Server) -> None:
    queue.add_batch_part("half", 0, range(2))
    for entry in take(queue):
        finish(queue, entry)
    async with (
        open_follower(connected, queue.name, FREQUENT_POLLS) as follower,
        aclosing(follower.batch_snapshots("half", "0-0")) as snapshots,
    ):
        snapshot = await within(anext(snapshots))
        assert (snapshot.done, snapshot.finished) == (2, False)
        queue.finalize_batch("half", total=2, parts=1)
        assert (await within(anext(snapshots))).finished


@pytest.mark.timeout(120)
async def test_a_thousand_waits_share_two_connections(queue: Queue, connected: Server) -> None:
    events_after = queue.last_event_id()
    batches = [queue.add_batch([n]) for n in range(1000)]
    clients_before = connected_clients(queue)
    async with open_follower(connected, queue.name, EVENTS_ONLY) as follower:
        waits = [
            asyncio.create_task(follower.wait_for_job(next(batch.job_ids()), events_after))
            for batch in batches
        ]
        await wait_until_polled(follower)
        assert connected_clients(queue) - clients_before == 2
        for entry in take(queue, 2000):
            finish(queue, entry)
        results = await within(asyncio.gather(*waits), 60)
        assert {result.status for result in results} == {"done"}
        assert connected_clients(queue) - clients_before == 2
    await wait_until_async(
        lambda: connected_clients(queue) == clients_before,
        message="the follower closed its connections",
    )


def connected_clients(queue: Queue) -> int:
    """Return the number of connections to the server."""
    info: bytes = queue.client.execute(redis_command("INFO", "clients", parse=as_raw))
    line = next(line for line in info.splitlines() if line.startswith(b"connected_clients"))
    return int(line.partition(b":")[2])


async def test_a_wait_survives_a_restart_of_the_server(
    redis86_binary: Any, queue_name: str
) -> None:
    from tests.support.servers import RedisServer

    with RedisServer.start(redis86_binary, aof=True) as process:
        server = Server(process.url, "native")
        with Queue(queue_name, server.url) as queue:
            (job_id,) = queue.add_batch([1]).job_ids()
            async with open_follower(server, queue_name, EVENTS_ONLY) as follower:
                waiting = asyncio.create_task(follower.wait_for_job(job_id, "0-0"))
                await wait_until_started(follower)
                process.kill()
                await asyncio.sleep(0.2)
                await asyncio.to_thread(process.restart)
                finish(queue, take(queue)[0])
                assert (await within(waiting, 40)).status == "done"


async def test_a_wrong_password_ends_the_wait(redis86_binary: Any, queue_name: str) -> None:
    from tests.support.servers import RedisServer

    with RedisServer.start(redis86_binary, "--requirepass", "secret") as process:
        url = process.url.replace("redis://", "redis://:wrong@")
        async with open_follower(Server(url, "native"), queue_name, EVENTS_ONLY) as follower:
            with pytest.raises(AuthenticationFailed):
                await within(follower.wait_for_job("any", "0-0"), 30)
