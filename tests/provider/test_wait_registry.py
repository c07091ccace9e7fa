"""Every waiter receives the outcome of its job or batch, with and without events."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.batch import batch_job_id
from airflow_provider_chasqui.core.command import as_int, as_raw, redis_command
from airflow_provider_chasqui.core.commands import events
from airflow_provider_chasqui.core.errors import AuthenticationFailed, BatchNotFound
from airflow_provider_chasqui.core.event import event_fields
from airflow_provider_chasqui.core.waiting import WaitIntervals
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.triggers import _waiting
from airflow_provider_chasqui.triggers._wait_registry import WaitRegistry, shared_registry
from tests.conftest import Server
from tests.provider.conftest import connect
from tests.support.manual_worker import (
    ack,
    enlarge_batch,
    finish,
    finish_without_bits,
    move_to_dlq,
    take,
    trim_events,
)
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until_async

T = TypeVar("T")
# No polls and no scans within the time of a test: a result comes from an event or the first read.
EVENTS_ONLY = WaitIntervals(poll_interval=60, first_scan_delay=60)
# Frequent polls and scans: a result needs no event.
FREQUENT_POLLS = WaitIntervals(
    poll_interval=0.2, first_scan_delay=0.3, scan_interval=0.3, bit_delay=0.1
)


@asynccontextmanager
async def open_registry(
    server: Server, queue_name: str, intervals: WaitIntervals
) -> AsyncIterator[WaitRegistry]:
    async def open_queue() -> AsyncQueue:
        return AsyncQueue(queue_name, server.url, dialect=server.dialect)

    async with shared_registry(server.url, queue_name, open_queue, lambda: intervals) as registry:
        yield registry


async def within(wait: Awaitable[T], seconds: float = 10) -> T:
    return await asyncio.wait_for(wait, seconds)


async def wait_until_started(registry: WaitRegistry) -> None:
    await wait_until_async(lambda: registry.cursor is not None, message="the registry reads events")


async def wait_until_polled(registry: WaitRegistry) -> None:
    await wait_until_started(registry)
    await wait_until_async(
        lambda: all(waiter.earliest_check_at for waiter in registry.all_waiters()),
        message="the state of every waiter was read",
    )


async def test_an_event_ends_the_wait_immediately(queue: Queue, connected: Server) -> None:
    batch = queue.add_batch([1])
    (job_id,) = batch.job_ids()
    async with open_registry(connected, queue.name, EVENTS_ONLY) as registry:
        waiting = asyncio.create_task(registry.wait_for_job(job_id, queue.last_event_id()))
        await wait_until_started(registry)
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
    async with open_registry(connected, queue.name, EVENTS_ONLY) as registry:
        assert (await within(registry.wait_for_job(job_id, events_after))).status == "done"


async def test_a_new_waiter_receives_events_from_before_the_follower_started(
    queue: Queue, connected: Server
) -> None:
    events_after = queue.last_event_id()
    queue.add(1, job_id="early")
    finish(queue, take(queue)[0])
    later = queue.last_event_id()
    batch = queue.add_batch([1])
    async with open_registry(connected, queue.name, EVENTS_ONLY) as registry:
        other = asyncio.create_task(registry.wait_for_job(next(batch.job_ids()), later))
        await wait_until_started(registry)
        assert (await within(registry.wait_for_job("early", events_after))).status == "done"
        finish(queue, take(queue)[0])
        await within(other)


@pytest.mark.parametrize("custom_id", [True, False])
async def test_a_wait_ends_without_events(queue: Queue, connected: Server, custom_id: bool) -> None:
    """Bits and results are sufficient if events are trimmed or disabled."""
    job_id = "custom" if custom_id else next(queue.add_batch([1]).job_ids())
    if custom_id:
        queue.add(1, job_id=job_id)
    async with open_registry(
        connected, queue.name, WaitIntervals(poll_interval=0.2, first_scan_delay=60)
    ) as registry:
        waiting = asyncio.create_task(registry.wait_for_job(job_id, queue.last_event_id()))
        await wait_until_polled(registry)
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
    async with open_registry(connected, queue.name, intervals) as registry:
        waiting = asyncio.create_task(registry.wait_for_job(job_id, queue.last_event_id()))
        await wait_until_started(registry)
        move_to_dlq(queue, take(queue)[0], "ValueError: no such address", emit=emit)
        result = await within(waiting)
    assert (result.status, result.reason) == ("dead", "unrecoverable")
    assert result.error == "ValueError: no such address"


async def test_a_cancelled_job_ends_the_wait(queue: Queue, connected: Server) -> None:
    batch = queue.add_batch([1], delay=timedelta(hours=1))
    (job_id,) = batch.job_ids()
    async with open_registry(connected, queue.name, FREQUENT_POLLS) as registry:
        waiting = asyncio.create_task(registry.wait_for_job(job_id, queue.last_event_id()))
        await wait_until_started(registry)
        assert queue.cancel(job_id) == "cancelled"
        assert (await within(waiting)).status == "dead"


@pytest.mark.parametrize("job_id", ["never-was", "batch:never-was:0:0"])
async def test_an_unknown_job_ends_the_wait(queue: Queue, connected: Server, job_id: str) -> None:
    async with open_registry(connected, queue.name, FREQUENT_POLLS) as registry:
        assert (await within(registry.wait_for_job(job_id, "0-0"))).status == "unknown"


async def test_a_job_that_stays_on_the_queue_is_not_reported_as_unknown(
    queue: Queue, connected: Server
) -> None:
    queue.add(1, job_id="here")
    queue.add(1, job_id="later", delay=timedelta(hours=1))
    async with open_registry(connected, queue.name, FREQUENT_POLLS) as registry:
        waits = [
            asyncio.create_task(registry.wait_for_job(job_id, "0-0"))
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
    async with open_registry(connected, queue.name, FREQUENT_POLLS) as registry:
        waiting = asyncio.create_task(registry.wait_for_job(job_id, events_after))
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
    async with open_registry(
        connected, queue.name, WaitIntervals(poll_interval=60, first_scan_delay=0.3, bit_delay=0.2)
    ) as registry:
        assert (await within(registry.wait_for_job(job_id, events_after))).status == "done"
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
        open_registry(connected, queue.name, FREQUENT_POLLS) as registry,
        aclosing(registry.batch_snapshots(batch.batch_id, events_after)) as snapshots,
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


@asynccontextmanager
async def measure_steps() -> AsyncIterator[list[float]]:
    """Collect the CPU time of every turn of the event loop, without garbage collections."""
    steps: list[float] = []

    async def measure() -> None:
        while True:
            started = time.thread_time()
            await asyncio.sleep(0)
            steps.append(time.thread_time() - started)

    gc.disable()
    task = asyncio.create_task(measure())
    try:
        yield steps
    finally:
        task.cancel()
        gc.enable()


@pytest.mark.parametrize("with_bits", [True, False])
async def test_a_look_at_a_million_jobs_does_not_block_the_loop(
    queue: Queue, connected: Server, with_bits: bool
) -> None:
    events_after = queue.last_event_id()
    batch = queue.add_batch([0])
    enlarge_batch(queue, batch.batch_id, 1_000_000)
    if with_bits:
        done_key, half = queue.keys.batch_done(batch.batch_id, 0), b"\xff" * 62_500
        queue.client.execute(redis_command("SETRANGE", done_key, 0, half, parse=as_int))
    finished = range(500_000, 1_000_000, 25)
    for start in range(0, len(finished), 1000):
        page = [
            event_fields("completed", batch_job_id(batch.batch_id, 0, index), current_time_ms())
            for index in finished[start : start + 1000]
        ]
        queue.client.execute(events.emit(queue.keys, page))
    async with (
        open_registry(connected, queue.name, FREQUENT_POLLS) as registry,
        measure_steps() as steps,
        aclosing(registry.batch_snapshots(batch.batch_id, events_after)) as snapshots,
    ):
        snapshot = await within(anext(snapshots), 30)
        while snapshot.done < (500_000 if with_bits else len(finished)):
            snapshot = await within(anext(snapshots), 30)
    assert max(steps) < 0.05
    assert sum(step > 0.01 for step in steps) < len(steps) / 100


async def test_a_batch_reports_its_progress_and_its_dead_jobs(
    queue: Queue, connected: Server
) -> None:
    events_after = queue.last_event_id()
    batch = queue.add_batch(range(100))
    observed = []
    async with (
        open_registry(connected, queue.name, EVENTS_ONLY) as registry,
        aclosing(registry.batch_snapshots(batch.batch_id, events_after)) as snapshots,
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
        open_registry(connected, queue.name, FREQUENT_POLLS) as registry,
        aclosing(registry.batch_snapshots(batch.batch_id, "0-0")) as snapshots,
    ):
        snapshot = await within(anext(snapshots))
        while not snapshot.finished:
            snapshot = await within(anext(snapshots))
    assert (snapshot.done, snapshot.lost) == (1, 2)


async def test_the_wait_for_a_batch_that_does_not_exist_fails(
    queue: Queue, connected: Server
) -> None:
    async with open_registry(connected, queue.name, EVENTS_ONLY) as registry:
        with pytest.raises(BatchNotFound):
            await within(anext(registry.batch_snapshots("nothing", "0-0")))


async def test_a_batch_without_a_total_is_not_finished(queue: Queue, connected: Server) -> None:
    queue.add_batch_part("half", 0, range(2))
    for entry in take(queue):
        finish(queue, entry)
    async with (
        open_registry(connected, queue.name, FREQUENT_POLLS) as registry,
        aclosing(registry.batch_snapshots("half", "0-0")) as snapshots,
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
    async with open_registry(connected, queue.name, EVENTS_ONLY) as registry:
        waits = [
            asyncio.create_task(registry.wait_for_job(next(batch.job_ids()), events_after))
            for batch in batches
        ]
        await wait_until_polled(registry)
        assert connected_clients(queue) - clients_before == 2
        for entry in take(queue, 2000):
            finish(queue, entry)
        results = await within(asyncio.gather(*waits), 60)
        assert {result.status for result in results} == {"done"}
        assert connected_clients(queue) - clients_before == 2
    await wait_until_async(
        lambda: connected_clients(queue) == clients_before,
        message="the registry closed its connections",
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
            async with open_registry(server, queue_name, EVENTS_ONLY) as registry:
                waiting = asyncio.create_task(registry.wait_for_job(job_id, "0-0"))
                await wait_until_started(registry)
                process.kill()
                await asyncio.sleep(0.2)
                await asyncio.to_thread(process.restart)
                finish(queue, take(queue)[0])
                assert (await within(waiting, 40)).status == "done"


async def test_a_wait_times_out_while_the_server_is_not_reachable(
    redis86_binary: Any, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []

    def log(text: str, *args: object) -> None:
        lines.append(text % args)

    with RedisServer.start(redis86_binary) as process:
        connect(monkeypatch, Server(process.url, "native"))
        with Queue(queue_name, process.url) as queue:
            batch = queue.add_batch([1, 2])
        source = _waiting.QueueSource("chasqui_default", queue_name)
        limit, timeout = _waiting.FailureLimit(), 4.0
        waits = [
            _waiting.wait_job(source, "batch:none:0:0", "0-0", must_exist=False, timeout=timeout),
            _waiting.wait_batch(source, batch.batch_id, "0-0", limit, log, 0.5, timeout=timeout),
        ]
        waiting = asyncio.gather(*(_waiting.error_as_event(wait) for wait in waits))
        await wait_until_async(lambda: bool(lines), message="the first progress line")
        process.kill()
        job_event, batch_event = await within(waiting, 30)
    for event in (job_event, batch_event):
        assert (event["status"], event["kind"]) == ("error", "WaitTimeout")
        assert "the server is not reachable" in event["message"]
    assert (batch_event["total"], batch_event["done"]) == (2, 0)
    assert any("the server is not reachable" in line for line in lines)


async def test_a_wrong_password_ends_the_wait(redis86_binary: Any, queue_name: str) -> None:
    from tests.support.servers import RedisServer

    with RedisServer.start(redis86_binary, "--requirepass", "secret") as process:
        url = process.url.replace("redis://", "redis://:wrong@")
        async with open_registry(Server(url, "native"), queue_name, EVENTS_ONLY) as registry:
            with pytest.raises(AuthenticationFailed):
                await within(registry.wait_for_job("any", "0-0"), 30)
