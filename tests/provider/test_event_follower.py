"""Stories of waiting: whatever happens to a job, everybody who waits for it learns its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from airflow_provider_chasqui.core.codec import encode_job
from airflow_provider_chasqui.core.command import as_int, as_raw, redis_command
from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.commands.enqueue import emit
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

T = TypeVar("T")
# Slow rechecks and no early census: what answers soon was told by an event or the first look.
BY_EVENTS = PollIntervals(poll_interval=60, first_scan_delay=60)
# Quick ones: what answers needed no event.
BY_LOOKING = PollIntervals(
    poll_interval=0.2, first_scan_delay=0.3, scan_interval=0.3, bit_delay=0.1
)


@asynccontextmanager
async def follower_of(
    server: Server, name: str, pace: PollIntervals
) -> AsyncIterator[EventFollower]:
    async def open_queue() -> AsyncQueue:
        return AsyncQueue(name, server.url, dialect=server.dialect)

    async with shared_follower(server.url, name, open_queue, lambda: pace) as follower:
        yield follower


async def soon(wait: Awaitable[T], seconds: float = 10) -> T:
    return await asyncio.wait_for(wait, seconds)


def take(queue: Queue, count: int = 1000) -> list[StreamEntry]:
    """Read jobs as a worker does."""
    if not queue.consumers():
        queue.client.execute(consumer_group.create(queue.keys, "default")) if not _group(
            queue
        ) else None
    raw = queue.client.execute(consumer_group.read(queue.keys, "default", "w", count, 0, 60_000))
    return [
        each
        for each in (consumer_group.parse_entry(one, 2**30) for one in raw)
        if isinstance(each, StreamEntry)
    ]


def _group(queue: Queue) -> bool:
    groups = queue.client.execute(
        redis_command("XINFO", "GROUPS", queue.keys.stream, parse=as_raw, default_if_missing=list)
    )
    return bool(groups)


def finish(queue: Queue, entry: StreamEntry, result: Any = None, tell: bool = True) -> None:
    """Settle as our worker does: bits and result with the ack, then the event."""
    kept = None if result is None else encode_payload(result)
    settled = consumer_group.Completion(entry.id, entry.job.id, kept)
    assert queue.client.execute(
        consumer_group.ack_with_results(queue.keys, "default", [settled])
    ) == [True]
    if tell:
        say(queue, "completed", entry.job.id)


def finish_without_bits(queue: Queue, entry: StreamEntry) -> None:
    """Settle as a stock ChasquiMQ worker does: the ack and the event, nothing else."""
    assert queue.client.execute(consumer_group.ack(queue.keys, "default", [entry.id])) == [True]
    say(queue, "completed", entry.job.id)


def bury(queue: Queue, entry: StreamEntry, error: str = "boom", tell: bool = True) -> None:
    burial = consumer_group.NewDeadLetter(
        entry.id, encode_job(entry.job), entry.job.name, "unrecoverable",
        error=error, attempts=1, failed_at_ms=5, job_id=entry.job.id,
    )  # fmt: skip
    assert queue.client.execute(consumer_group.move_to_dlq(queue.keys, "default", [burial])) == [
        True
    ]
    if tell:
        say(queue, "dlq", entry.job.id, reason="unrecoverable")


def say(queue: Queue, event: str, job_id: str, **extras: Any) -> None:
    queue.client.execute(
        emit(queue.keys, [event_fields(event, job_id, time.time_ns() // 10**6, **extras)])
    )


def trim_events(queue: Queue) -> None:
    queue.client.execute(redis_command("XTRIM", queue.keys.events, "MAXLEN", 0, parse=as_int))


async def test_an_event_ends_the_wait_at_once(queue: Queue, connected: Server) -> None:
    batch = queue.add_batch([1])
    (job_id,) = batch.job_ids()
    async with follower_of(connected, queue.name, BY_EVENTS) as follower:
        waiting = asyncio.create_task(follower.wait_for_job(job_id, queue.last_event_id()))
        await until(lambda: follower.recent_events is not None)
        (entry,) = take(queue)
        started = time.monotonic()
        finish(queue, entry)
        end = await soon(waiting)
        assert (end.status, time.monotonic() - started < 5) == ("done", True)


async def until(condition: Any, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("own_id", [True, False])
async def test_a_job_that_ended_before_anybody_waited(
    queue: Queue, connected: Server, own_id: bool
) -> None:
    since = queue.last_event_id()
    job_id = "mine" if own_id else next(queue.add_batch([1]).job_ids())
    if own_id:
        queue.add(1, job_id=job_id, dedup_ttl=timedelta(days=1))
    finish(queue, take(queue)[0])
    async with follower_of(connected, queue.name, BY_EVENTS) as follower:
        assert (await soon(follower.wait_for_job(job_id, since))).status == "done"


async def test_a_late_comer_reads_what_the_follower_had_passed(
    queue: Queue, connected: Server
) -> None:
    since = queue.last_event_id()
    queue.add(1, job_id="early")
    finish(queue, take(queue)[0])
    later = queue.last_event_id()
    batch = queue.add_batch([1])
    async with follower_of(connected, queue.name, BY_EVENTS) as follower:
        other = asyncio.create_task(follower.wait_for_job(next(batch.job_ids()), later))
        await until(lambda: follower.recent_events is not None)
        assert (await soon(follower.wait_for_job("early", since))).status == "done"
        finish(queue, take(queue)[0])
        await soon(other)


@pytest.mark.parametrize("own_id", [True, False])
async def test_no_event_is_needed(queue: Queue, connected: Server, own_id: bool) -> None:
    """Events trimmed away, or switched off: bits, results and letters still tell."""
    job_id = "mine" if own_id else next(queue.add_batch([1]).job_ids())
    if own_id:
        queue.add(1, job_id=job_id)
    async with follower_of(
        connected, queue.name, PollIntervals(poll_interval=0.2, first_scan_delay=60)
    ) as follower:
        waiting = asyncio.create_task(follower.wait_for_job(job_id, queue.last_event_id()))
        await until(lambda: follower.recent_events is not None and _all_looked_at(follower))
        finish(queue, take(queue)[0], result={"ok": 1}, tell=False)
        trim_events(queue)
        assert (await soon(waiting)).status == "done"


@pytest.mark.parametrize("tell", [True, False])
@pytest.mark.parametrize("own_id", [True, False])
async def test_a_dead_job_brings_its_own_error(
    queue: Queue, connected: Server, own_id: bool, tell: bool
) -> None:
    job_id = "mine" if own_id else next(queue.add_batch([1]).job_ids())
    if own_id:
        queue.add(1, job_id=job_id)
    pace = BY_EVENTS if tell else BY_LOOKING
    async with follower_of(connected, queue.name, pace) as follower:
        waiting = asyncio.create_task(follower.wait_for_job(job_id, queue.last_event_id()))
        await until(lambda: follower.recent_events is not None)
        bury(queue, take(queue)[0], "ValueError: no such address", tell=tell)
        end = await soon(waiting)
    assert (end.status, end.reason) == ("dead", "unrecoverable")
    assert end.error == "ValueError: no such address"


async def test_a_cancelled_job_ends_the_wait(queue: Queue, connected: Server) -> None:
    batch = queue.add_batch([1], delay=timedelta(hours=1))
    (job_id,) = batch.job_ids()
    async with follower_of(connected, queue.name, BY_LOOKING) as follower:
        waiting = asyncio.create_task(follower.wait_for_job(job_id, queue.last_event_id()))
        await until(lambda: follower.recent_events is not None)
        assert queue.cancel(job_id) == "cancelled"
        assert (await soon(waiting)).status == "dead"


@pytest.mark.parametrize("job_id", ["never-was", "batch:never-was:0:0"])
async def test_an_unknown_job_ends_the_wait(queue: Queue, connected: Server, job_id: str) -> None:
    async with follower_of(connected, queue.name, BY_LOOKING) as follower:
        assert (await soon(follower.wait_for_job(job_id, "0-0"))).status == "unknown"


async def test_a_job_that_waits_long_is_not_taken_for_unknown(
    queue: Queue, connected: Server
) -> None:
    queue.add(1, job_id="here")
    queue.add(1, job_id="later", delay=timedelta(hours=1))
    async with follower_of(connected, queue.name, BY_LOOKING) as follower:
        waits = [
            asyncio.create_task(follower.wait_for_job(each, "0-0")) for each in ("here", "later")
        ]
        done, _ = await asyncio.wait(waits, timeout=2)
        assert not done
        finish(queue, take(queue)[0])
        assert (await soon(waits[0])).status == "done"
        waits[1].cancel()


async def test_a_replayed_job_is_awaited_again(queue: Queue, connected: Server) -> None:
    """Its old death still stands in the events; it lives all the same."""
    since = queue.last_event_id()
    (job_id,) = queue.add_batch([1]).job_ids()
    bury(queue, take(queue)[0])
    assert queue.replay_dead_letters().affected == 1
    async with follower_of(connected, queue.name, BY_LOOKING) as follower:
        waiting = asyncio.create_task(follower.wait_for_job(job_id, since))
        done, _ = await asyncio.wait([waiting], timeout=1)
        assert not done
        finish(queue, take(queue)[0])
        assert (await soon(waiting)).status == "done"


async def test_a_worker_without_bits_is_followed_by_its_events(
    queue: Queue, connected: Server, caplog: pytest.LogCaptureFixture
) -> None:
    since = queue.last_event_id()
    (job_id,) = queue.add_batch([1]).job_ids()
    finish_without_bits(queue, take(queue)[0])
    async with follower_of(
        connected, queue.name, PollIntervals(poll_interval=60, bit_delay=0.2)
    ) as follower:
        assert (await soon(follower.wait_for_job(job_id, since))).status == "done"
    assert "sets no batch bits" in caplog.text


async def test_a_batch_of_workers_without_bits_even_if_events_are_trimmed(
    queue: Queue, connected: Server
) -> None:
    since = queue.last_event_id()
    batch = queue.add_batch(range(30))
    entries = take(queue)
    for entry in entries[:10]:
        finish_without_bits(queue, entry)
    async with (
        follower_of(connected, queue.name, BY_LOOKING) as follower,
        aclosing(follower.batch_snapshots(batch.batch_id, since)) as sights,
    ):
        sight = await soon(anext(sights))
        while sight.done < 10:
            sight = await soon(anext(sights))
        for entry in entries[10:28]:
            assert queue.client.execute(consumer_group.ack(queue.keys, "default", [entry.id])) == [
                True
            ]
        for entry in entries[28:]:
            bury(queue, entry, tell=False)
        while not sight.finished:
            sight = await soon(anext(sights))
        assert (sight.done, sight.dead, sight.lost) == (28, 2, 0)


async def test_a_batch_shows_its_progress_and_its_dead(queue: Queue, connected: Server) -> None:
    since = queue.last_event_id()
    batch = queue.add_batch(range(100))
    seen = []
    async with (
        follower_of(connected, queue.name, BY_EVENTS) as follower,
        aclosing(follower.batch_snapshots(batch.batch_id, since)) as sights,
    ):
        first = await soon(anext(sights))
        assert (first.done, first.progress.total) == (0, 100)
        for entry in take(queue, 60):
            finish(queue, entry)
        while (sight := await soon(anext(sights))).done < 60:
            seen.append(sight)
        for entry in take(queue, 39):
            finish(queue, entry)
        bury(queue, take(queue)[0])
        seen += [sight async for sight in sights]
    assert (seen[-1].done, seen[-1].dead) == (99, 1)
    assert seen[-1].finished


async def test_jobs_that_vanish_from_a_batch_are_called_lost(
    queue: Queue, connected: Server
) -> None:
    batch = queue.add_batch(range(3))
    entries = take(queue)
    finish(queue, entries[0])
    for entry in entries[1:]:
        queue.client.execute(redis_command("XDEL", queue.keys.stream, entry.id, parse=as_int))
    async with (
        follower_of(connected, queue.name, BY_LOOKING) as follower,
        aclosing(follower.batch_snapshots(batch.batch_id, "0-0")) as sights,
    ):
        async for sight in sights:
            last = await soon(_itself(sight))
    assert (last.done, last.lost, last.finished) == (1, 2, True)


async def _itself(value: T) -> T:
    return value


async def test_a_batch_that_was_never_sent(queue: Queue, connected: Server) -> None:
    async with follower_of(connected, queue.name, BY_EVENTS) as follower:
        with pytest.raises(BatchNotFound):
            await soon(anext(follower.batch_snapshots("nothing", "0-0")))


async def test_a_half_sent_batch_is_not_taken_for_finished(queue: Queue, connected: Server) -> None:
    queue.add_batch_part("half", 0, range(2))
    for entry in take(queue):
        finish(queue, entry)
    async with (
        follower_of(connected, queue.name, BY_LOOKING) as follower,
        aclosing(follower.batch_snapshots("half", "0-0")) as sights,
    ):
        sight = await soon(anext(sights))
        assert (sight.done, sight.finished) == (2, False)
        queue.finalize_batch("half", total=2, parts=1)
        assert (await soon(anext(sights))).finished


@pytest.mark.timeout(120)
async def test_a_thousand_waits_share_two_connections(queue: Queue, connected: Server) -> None:
    since = queue.last_event_id()
    batches = [queue.add_batch([n]) for n in range(1000)]
    before = _clients(queue)
    async with follower_of(connected, queue.name, BY_EVENTS) as follower:
        waits = [
            asyncio.create_task(follower.wait_for_job(next(batch.job_ids()), since))
            for batch in batches
        ]
        await until(lambda: follower.recent_events is not None and _all_looked_at(follower))
        assert _clients(queue) - before == 2
        for entry in take(queue, 2000):
            finish(queue, entry)
        ends = await soon(asyncio.gather(*waits), 60)
        assert {end.status for end in ends} == {"done"}
        assert _clients(queue) - before == 2
    await until(lambda: _clients(queue) == before)


def _all_looked_at(follower: EventFollower) -> bool:
    return all(watch.checked_at for watch in follower.waiters())


def _clients(queue: Queue) -> int:
    """How many connections stand to this queue's server from this test's follower and queue."""
    info: bytes = queue.client.execute(redis_command("INFO", "clients", parse=as_raw))
    line = next(line for line in info.splitlines() if line.startswith(b"connected_clients"))
    return int(line.partition(b":")[2])


async def test_a_server_that_goes_away_and_comes_back(redis86_binary: Any, queue_name: str) -> None:
    from tests.support.servers import RedisServer

    with RedisServer.start(redis86_binary, aof=True) as process:
        server = Server(process.url, "native")
        with Queue(queue_name, server.url) as queue:
            (job_id,) = queue.add_batch([1]).job_ids()
            async with follower_of(server, queue_name, BY_EVENTS) as follower:
                waiting = asyncio.create_task(follower.wait_for_job(job_id, "0-0"))
                await until(lambda: follower.recent_events is not None)
                process.kill()
                await asyncio.sleep(0.2)
                await asyncio.to_thread(process.restart)
                finish(queue, take(queue)[0])
                assert (await soon(waiting, 40)).status == "done"


async def test_a_wrong_password_ends_the_wait(redis86_binary: Any, queue_name: str) -> None:
    from tests.support.servers import RedisServer

    with RedisServer.start(redis86_binary, "--requirepass", "secret") as process:
        url = process.url.replace("redis://", "redis://:wrong@")
        async with follower_of(Server(url, "native"), queue_name, BY_EVENTS) as follower:
            with pytest.raises(AuthenticationFailed):
                await soon(follower.wait_for_job("any", "0-0"), 30)
