"""Tests of the faults of ChasquiMQ 1.3.0 that this engine does not have.

Each fault was observed with the real ChasquiMQ and is named in the comment above its tests.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import msgpack
import pytest

from airflow_provider_chasqui.core import errors
from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.config import QueueConfig, SchedulerConfig
from airflow_provider_chasqui.core.cron import Cron, Every
from airflow_provider_chasqui.core.errors import ChasquiError, QueueFull
from airflow_provider_chasqui.core.outcome import Unrecoverable
from airflow_provider_chasqui.core.repeat import FIRE_ONCE, fire_all
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.conftest import SERVERS
from tests.engine.conftest import PUNCTUAL, empty, working
from tests.support.redis_state import plain_client
from tests.support.servers import RedisServer, valkey_binary
from tests.support.waiting import wait_until_async

NO_DELAY = Backoff.fixed(timedelta(milliseconds=1))


async def nothing(job: Any) -> None: ...


async def fails(job: Any) -> None:
    raise ValueError("broken")


# Fault: a handler that takes longer than 30 s runs a second time concurrently.


async def test_a_handler_longer_than_claim_after_does_not_run_twice(queue: AsyncQueue) -> None:
    began: Counter[str] = Counter()

    async def long(job) -> None:
        began[job.id] += 1
        await asyncio.sleep(2.0)

    await queue.add(1, job_id="long")
    config = {"claim_after": timedelta(milliseconds=500)}
    async with working(queue, long, **config) as first, working(queue, long, **config) as second:
        await wait_until_async(lambda: began)
        await wait_until_async(lambda: empty(queue))
        # No reader claimed it, not even the one of the same worker.
        assert first.metrics.counts["reclaimed"] == 0
        assert second.metrics.counts["reclaimed"] == 0
    assert began == {"long": 1}


async def test_a_prefetched_entry_is_renewed_and_runs_once(queue: AsyncQueue) -> None:
    """A prefetched entry waits for a slow job: it is renewed or requeued, and runs once."""
    began: Counter[str] = Counter()

    async def slow(job) -> None:
        began[job.id] += 1
        await asyncio.sleep(0 if job.id.startswith("fast") else 1.5)

    await queue.add_many([{"payload": 1, "job_id": f"fast{n}"} for n in range(20)])
    await queue.add_many([{"payload": 1, "job_id": f"slow{n}"} for n in range(4)])
    config = {"claim_after": timedelta(milliseconds=600), "concurrency": 1}
    async with working(queue, slow, **config), working(queue, slow, **config):
        await wait_until_async(lambda: len(began) == 24, 30)
        await wait_until_async(lambda: empty(queue))
    assert set(began.values()) == {1}


async def test_one_worker_with_concurrency_1_keeps_the_order_when_a_job_is_slow(
    queue: AsyncQueue,
) -> None:
    """The prefetched jobs wait for the slow one: no other consumer could run them."""
    order: list[int] = []

    async def handle(job) -> None:
        if job.payload == 300:
            await asyncio.sleep(2.5)
        order.append(job.payload)

    await queue.add_many([{"payload": n} for n in range(2000)])
    async with working(queue, handle, concurrency=1):
        await wait_until_async(lambda: len(order) == 2000)
    assert order == list(range(2000))


async def test_a_slow_job_does_not_delay_prefetched_jobs(queue: AsyncQueue) -> None:
    """Another consumer runs the prefetched entries of a consumer that is busy with a slow job."""
    release = asyncio.Event()
    began: list[str] = []

    async def handle(job) -> None:
        began.append(job.id)
        if job.id == "slow":
            await release.wait()

    fast_jobs = [{"payload": 1, "job_id": f"fast{n}"} for n in range(30)]
    await queue.add_many(
        [*fast_jobs, {"payload": 1, "job_id": "slow"}, {"payload": 1, "job_id": "after"}]
    )
    async with working(queue, handle, concurrency=1):
        await wait_until_async(lambda: "slow" in began)
        async with working(queue, handle, concurrency=1):
            started = time.monotonic()
            await wait_until_async(lambda: "after" in began)
            assert time.monotonic() - started < 5
            assert not release.is_set()
            release.set()
            await wait_until_async(lambda: empty(queue))
    assert Counter(began).most_common(1)[0][1] == 1


# Fault: the blocked read of a stopped worker receives the next job, which waits for 30 s.


async def test_the_blocked_read_of_a_stopped_worker_receives_no_job(queue: AsyncQueue) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.id)

    async with working(queue, handle, block_timeout=timedelta(milliseconds=60_000)) as first:
        await wait_until_async(lambda: _one_consumer(queue))
        started = time.monotonic()
        first.stop()
        await wait_until_async(lambda: _no_consumers(queue), 5)
        assert time.monotonic() - started < 3  # although the read would block for a minute
        await queue.add(1, job_id="next")
        async with working(queue, handle, block_timeout=timedelta(milliseconds=60_000)):
            await wait_until_async(lambda: ran == ["next"], 3)


async def _one_consumer(queue: AsyncQueue) -> bool:
    return len(await queue.consumers()) == 1


async def _no_consumers(queue: AsyncQueue) -> bool:
    return await queue.consumers() == []


# Fault: one crash too many is allowed, and a retry forgets earlier crashes.


@pytest.mark.parametrize(("crashes", "allowed"), [(1, 2), (2, 2), (1, 1), (3, 5)])
async def test_crashed_runs_count_as_attempts_exactly(
    queue: AsyncQueue, crashes: int, allowed: int
) -> None:
    attempts: list[int] = []

    async def handle(job) -> None:
        attempts.append(job.attempt)
        raise ValueError("broken")

    await queue.add(1, job_id="j", job_name="n", retry=RetryPolicy(allowed, NO_DELAY))
    await _crash(queue, crashes)
    async with working(queue, handle, claim_after=timedelta(milliseconds=50)):
        [dead_letter] = await wait_until_async(queue.dead_letters)
    assert attempts == list(range(crashes, allowed))
    assert dead_letter.attempts == allowed
    assert dead_letter.reason == "retries_exhausted"


async def _crash(queue: AsyncQueue, times: int) -> None:
    """Deliver the only job to consumers that never ack it."""
    keys, client = queue.keys, queue.client
    await client.execute(consumer_group.create(keys, "default"))
    [_] = await client.execute(consumer_group.read(keys, "default", "dead-0", 10, 0))
    for number in range(1, times):
        _, [_] = await client.execute(
            consumer_group.claim_and_read(keys, "default", f"dead-{number}", 0, 10)
        )


# Fault: add_unique forgets an id after 100 other ids or 100 s.


async def test_deduplication_outlives_many_other_ids_and_the_producer(
    queue: AsyncQueue, server
) -> None:
    unique = {"job_id": "once", "dedup_ttl": timedelta(days=1)}
    assert (await queue.add(1, **unique)).created
    await queue.add_many([{"payload": n} for n in range(300)])
    for n in range(150):
        await queue.add(n, job_id=f"other-{n}")
    assert not (await queue.add(1, **unique)).created
    async with AsyncQueue(queue.name, server.url, dialect=server.dialect) as another:
        assert not (await another.add(1, **unique)).created
    async with working(queue, nothing):
        await wait_until_async(lambda: empty(queue))
    assert not (await queue.add(1, **unique)).created  # also after the job has completed


# Fault: one invalid delayed member ends the promoter.


async def test_an_invalid_delayed_member_is_dead_lettered_and_the_others_are_promoted(
    queue: AsyncQueue, client
) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.id)

    for member in (b"", b"abc", b"\xff\xff\xff\xffshort"):
        client.zadd(queue.keys.delayed, {member: 1})
    await queue.add(1, job_id="good", delay=timedelta(milliseconds=50))
    async with working(queue, handle):
        await wait_until_async(lambda: ran == ["good"])
        await queue.add(1, job_id="later", delay=timedelta(milliseconds=50))
        await wait_until_async(lambda: ran == ["good", "later"])
    dead_letters = await queue.dead_letters()
    assert {dead_letter.raw for dead_letter in dead_letters} == {
        b"",
        b"abc",
        b"\xff\xff\xff\xffshort",
    }
    assert {dead_letter.reason for dead_letter in dead_letters} == {"malformed"}


# Fault: a repeat with an interval shorter than the tick never fires.


async def test_a_repeat_shorter_than_the_poll_interval_fires(queue: AsyncQueue) -> None:
    started: list[float] = []

    async def handle(job) -> None:
        started.append(time.monotonic())

    await queue.repeat(1, Every(150), job_name="often")
    async with working(
        queue, handle, scheduler=SchedulerConfig(poll_interval=timedelta(milliseconds=1000))
    ):
        await wait_until_async(lambda: len(started) >= 8)
    assert started[7] - started[0] < 3  # 1.05 s expected; one per tick would take 7 s


async def test_repeats_respect_their_limit_start_and_end(queue: AsyncQueue) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.name)

    await queue.repeat(1, Every(50), job_name="three", limit=3)
    now = datetime.now(UTC)
    soon = now + timedelta(milliseconds=1500)
    await queue.repeat(1, Every(400), job_name="ended", end=soon, misfire=fire_all(9))
    await queue.repeat(1, Every(50), job_name="tomorrow", start=now + timedelta(days=1))
    async with working(queue, handle, scheduler=PUNCTUAL):
        await wait_until_async(lambda: _repeat_names_are(queue, {"tomorrow"}))
        await wait_until_async(lambda: empty(queue))
    counts = Counter(ran)
    assert counts["three"] == 3
    assert counts["ended"] == 3
    assert counts["tomorrow"] == 0


async def _repeat_names_are(queue: AsyncQueue, names: set[str]) -> bool:
    return {status.repeat.job_name for status in await queue.repeats()} == names


async def test_two_schedulers_fire_once(queue: AsyncQueue) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.id)

    await queue.repeat(1, Every(30), job_name="r", limit=40)
    async with (
        working(queue, handle, scheduler=PUNCTUAL),
        working(queue, handle, scheduler=PUNCTUAL),
    ):
        await wait_until_async(lambda: _repeat_names_are(queue, set()))
        await wait_until_async(lambda: empty(queue))
    assert len(ran) == len(set(ran)) == 40


async def test_missed_fires_are_enqueued_oldest_first(queue: AsyncQueue, client) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.name)

    key = await queue.repeat(1, Every(60_000), job_name="all", misfire=fire_all(3))
    skipped = await queue.repeat(1, Every(60_000), job_name="skip")
    past = int(time.time() * 1000) - 300_000
    client.zadd(queue.keys.repeat, {key: past, skipped: past})
    async with working(queue, handle, scheduler=PUNCTUAL):
        await wait_until_async(lambda: len(ran) == 3)
        await wait_until_async(lambda: empty(queue))
        [first, second] = await queue.repeats()
    assert ran == ["all"] * 3
    now = int(time.time() * 1000)
    for status in (first, second):
        assert now < status.next_fire_ms <= now + 60_000
        assert (status.next_fire_ms - past) % 60_000 == 0


async def test_unusable_repeats_are_kept_and_the_others_fire(
    queue: AsyncQueue, client, caplog
) -> None:
    """Only a repeat without a definition is removed; a newer version may understand the others."""
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.name)

    keys = queue.keys
    for bad in (b"bad", b"\xff\xfe", b"wrong type"):
        client.zadd(keys.repeat, {bad: 1})
    client.hset(keys.repeat_spec("bad"), "spec", b"\xc1")
    client.set(keys.repeat_spec("wrong type"), "text")
    await queue.repeat(1, Every(50), job_name="good", limit=2)
    async with working(queue, handle, scheduler=PUNCTUAL):
        await wait_until_async(lambda: ran == ["good"] * 2)
        await wait_until_async(lambda: _repeat_names_are(queue, set()))
        commands = client.info("commandstats")["cmdstat_zrangebyscore"]["calls"]
        await asyncio.sleep(1)
        commands = client.info("commandstats")["cmdstat_zrangebyscore"]["calls"] - commands
        assert client.zrange(keys.repeat, 0, -1) == [b"bad", b"wrong type"]
    assert caplog.text.count("scheduler: dropped repeat") == 1
    assert caplog.text.count("does not fire") == 2
    assert commands < 250, "the scheduler polls without pause"


@pytest.mark.parametrize("score", ["100.5", "-inf", "-3"])
async def test_a_repeat_with_an_unusual_score_fires_once_and_continues(
    queue: AsyncQueue, client, score: str
) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.name)

    key = await queue.repeat(1, Every(3_600_000), job_name="r", misfire=FIRE_ONCE)
    client.zadd(queue.keys.repeat, {key: score})
    async with working(queue, handle, scheduler=PUNCTUAL):
        await wait_until_async(lambda: ran == ["r"])
        [status] = await wait_until_async(queue.repeats)
        assert status.next_fire_ms > time.time() * 1000
    assert ran == ["r"]


@pytest.mark.parametrize("offset_ms", [3_600_000, -3_600_000])
async def test_repeats_follow_the_clock_of_the_server(
    queue: AsyncQueue, offset_ms: int, monkeypatch
) -> None:
    """A worker whose clock is wrong neither fires early nor skips runs."""
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.name)

    await queue.repeat(1, Every(3_600_000), job_name="hourly")
    await queue.repeat(1, Every(300), job_name="often")
    monkeypatch.setattr(
        "airflow_provider_chasqui.engine.consumer_state.current_time_ms",
        lambda: time.time_ns() // 1_000_000 + offset_ms,
    )
    async with working(queue, handle, scheduler=PUNCTUAL):
        await wait_until_async(lambda: ran.count("often") >= 4)
        statuses = await queue.repeats()
    now_ms = time.time() * 1000
    assert "hourly" not in ran
    assert all(status.next_fire_ms < now_ms + 3_601_000 for status in statuses)


async def test_the_definition_of_a_newer_version_fires_and_keeps_what_is_unknown(
    queue: AsyncQueue, client
) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.name)

    keys = queue.keys
    tail = [[3, ["fixed", 5, None, None, None]], {"new": b"\x01"}]
    body = msgpack.packb(msgpack.packb(7))
    spec = ["newer", "newer", {"Every": [100]}, body, None, None, None, 0, {"Coalesce": [1]}, *tail]
    client.zadd(keys.repeat, {"newer": 1})
    client.hset(keys.repeat_spec("newer"), "spec", msgpack.packb(spec))
    async with working(queue, handle, scheduler=PUNCTUAL):
        await wait_until_async(lambda: len(ran) >= 2)
    assert client.hget(keys.repeat_spec("newer"), "spec") == msgpack.packb(spec)
    await queue.repeat(8, Every(200), job_name="newer", key="newer")
    stored = msgpack.unpackb(client.hget(keys.repeat_spec("newer"), "spec"))
    assert stored[2] == {"Every": [200]}
    assert stored[8:] == ["Skip", *tail]
    assert await queue.delete_repeat("newer")


# Fault: cron times have random milliseconds, skip the repeated DST hour and can be in the past.


async def test_cron_fires_on_full_seconds_across_both_dst_changes(queue: AsyncQueue) -> None:
    def ms(text: str) -> int:
        return int(datetime.fromisoformat(text + "+00:00").timestamp() * 1000)

    hourly = Cron("0 * * * *", "America/New_York")
    fire_ms = ms("2027-11-07T04:30:00") + 519
    fires = []
    for _ in range(4):
        fire_ms = hourly.next_after(fire_ms)
        fires.append(fire_ms)
    assert fires == [ms(f"2027-11-07T0{hour}:00:00") for hour in (5, 6, 7, 8)]
    gap = Cron("30 2 * * *", "America/New_York")
    assert gap.next_after(ms("2027-03-14T05:00:00")) == ms("2027-03-14T07:00:00")
    # The stored time is a full second in the future.
    await queue.repeat(1, Cron("* * * * * *"), job_name="second")
    [status] = await queue.repeats()
    assert status.next_fire_ms % 1000 == 0
    ran: list[int] = []

    async def handle(job) -> None:
        ran.append(job.created_at_ms)

    async with working(queue, handle, scheduler=PUNCTUAL):
        await wait_until_async(lambda: len(ran) >= 2)
        [status] = await queue.repeats()
    assert status.next_fire_ms % 1000 == 0
    assert all(created_ms % 1000 < 900 for created_ms in ran)  # soon after the full second


# Fault: a worker never recovers from a destroyed group or FLUSHALL.


async def test_a_destroyed_group_is_recreated_with_one_warning(
    queue: AsyncQueue, client, caplog
) -> None:
    ran: list[int] = []

    async def handle(job) -> None:
        ran.append(job.payload)

    caplog.set_level(logging.WARNING, "chasqui")
    async with working(queue, handle), working(queue, handle):
        await queue.add(1)
        await wait_until_async(lambda: ran == [1])
        client.xgroup_destroy(queue.keys.stream, "default")
        await queue.add(2)
        await wait_until_async(lambda: ran == [1, 2])
        await wait_until_async(lambda: empty(queue))
    assert caplog.text.count("was missing; recreated") == 1
    assert len(caplog.records) == 1


@pytest.mark.parametrize("kind", ["redis8-native", "valkey"])
async def test_the_worker_recovers_from_flushall_with_one_warning(
    request, kind: str, queue_name: str, caplog
) -> None:
    binary = valkey_binary() if kind == "valkey" else request.getfixturevalue("redis86_binary")
    ran: list[int] = []

    async def handle(job) -> None:
        ran.append(job.payload)

    caplog.set_level(logging.WARNING, "chasqui")
    with RedisServer.start(binary) as server, plain_client(server.url) as client:
        async with (
            AsyncQueue(queue_name, server.url, dialect=SERVERS[kind][1]) as queue,
            working(queue, handle, scheduler=PUNCTUAL),
        ):
            await queue.add(1)
            await wait_until_async(lambda: ran == [1])
            client.flushall()
            client.script_flush()
            await queue.add(2)
            await wait_until_async(lambda: ran == [1, 2])
            await queue.add(3, delay=timedelta(milliseconds=10))
            await wait_until_async(lambda: ran == [1, 2, 3])
            await wait_until_async(lambda: empty(queue))
    assert caplog.text.count("was missing; recreated") == 1
    assert len(caplog.records) == 1


# Fault: dead consumers accumulate in the group.


async def test_idle_consumers_and_stopped_consumers_are_removed(
    queue: AsyncQueue, monkeypatch
) -> None:
    from airflow_provider_chasqui.engine import heartbeat

    monkeypatch.setattr(heartbeat, "_CLEANUP_INTERVAL_S", 0.2)
    keys, redis_client = queue.keys, queue.client
    await redis_client.execute(consumer_group.create(keys, "default"))
    await queue.add(1)
    for name in ("owner", "dead-1", "dead-2"):
        await redis_client.execute(consumer_group.read(keys, "default", name, 1, 1))
    assert {c.name for c in await queue.consumers()} >= {"owner", "dead-1"}
    config = {"consumer_idle_ttl": timedelta(milliseconds=1200), "consumer_id": "new"}
    async with working(queue, nothing, claim_after=timedelta(milliseconds=60_000), **config):
        # A consumer that owns an entry stays: its entry must be claimed first.
        await wait_until_async(lambda: _consumer_names_are(queue, {"owner", "new"}))
    assert await _consumer_names_are(queue, {"owner"})


async def _consumer_names_are(queue: AsyncQueue, expected: set[str]) -> bool:
    return {consumer.name for consumer in await queue.consumers()} == expected


# Fault: delayed jobs without an id cannot be cancelled, and none can be rescheduled.


async def test_any_delayed_job_can_be_cancelled_and_rescheduled(queue: AsyncQueue) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.id)

    hour = timedelta(hours=1)
    unnamed = [(await queue.add(n, delay=hour)).job_id for n in range(3)]
    await queue.add(1, job_id="named", delay=hour)
    assert await queue.cancel(unnamed[0]) == "cancelled"
    assert await queue.cancel("named") == "cancelled"
    assert await queue.reschedule(unnamed[1], delay=timedelta(0))
    async with working(queue, handle):
        await wait_until_async(lambda: ran == [unnamed[1]])
    assert (await queue.job_status(unnamed[2])).state == "delayed"
    assert (await queue.depth()).delayed == 1


async def test_a_job_that_waits_for_its_retry_can_be_cancelled(queue: AsyncQueue) -> None:
    job_id = (await queue.add(1, retry=RetryPolicy(5, Backoff.fixed(timedelta(hours=1))))).job_id
    async with working(queue, fails):
        await wait_until_async(lambda: _has_state(queue, job_id, "delayed"))
        assert await queue.cancel(job_id) == "cancelled"
        assert await empty(queue)


async def _has_state(queue: AsyncQueue, job_id: str, state: str) -> bool:
    return (await queue.job_status(job_id)).state == state


# Fault: a job whose result cannot be encoded runs again.


async def test_a_job_whose_result_cannot_be_encoded_is_completed(queue: AsyncQueue) -> None:
    ran: list[str] = []

    async def handle(job) -> Any:
        ran.append(job.id)
        return object()

    async with working(queue, handle, store_results=True):
        job_id = (await queue.add(1)).job_id
        result = await queue.wait(job_id, timeout=timedelta(seconds=10))
        await wait_until_async(lambda: empty(queue))
    assert ran == [job_id]
    assert "MessagePack" in result["chasqui_error"]


# Fault: dead letters have no error text and lose the name if they cannot be decoded.


async def test_dead_letters_contain_the_name_the_error_the_attempts_and_the_time(
    queue: AsyncQueue, client
) -> None:
    before = int(time.time() * 1000)
    await queue.add(1, job_name="mail", job_id="j", retry=RetryPolicy(2, NO_DELAY))
    client.xadd(queue.keys.stream, {"d": b"\xc1", "n": "unreadable"})
    async with working(queue, fails):
        await wait_until_async(lambda: _dead_letter_count_is(queue, 2))
    by_reason = {dead_letter.reason: dead_letter for dead_letter in await queue.dead_letters()}
    dead = by_reason["retries_exhausted"]
    assert (dead.job_name, dead.error, dead.attempts) == ("mail", "ValueError: broken", 2)
    assert before <= dead.failed_at_ms <= time.time() * 1000
    assert dead.job.id == "j"
    bad = by_reason["decode_failed"]
    assert (bad.job_name, bad.raw, bad.attempts) == ("unreadable", b"\xc1", 0)
    assert "not MessagePack" in bad.error


async def _dead_letter_count_is(queue: AsyncQueue, count: int) -> bool:
    return len(await queue.dead_letters(limit=100)) == count


# Fault: replay is oldest-first only and stops at dead letters that cannot be decoded.


async def test_replay_filters_and_skips_dead_letters_that_cannot_be_decoded(
    queue: AsyncQueue, client
) -> None:
    fixed = asyncio.Event()
    ran: list[str] = []

    async def handle(job) -> None:
        if not fixed.is_set():
            raise Unrecoverable("broken")
        ran.append(job.id)

    for n in range(5):  # entries that cannot be decoded come first
        client.xadd(queue.keys.stream, {"d": b"\xc1", "n": f"bad{n}"})
    for name in ("mail", "mail", "sms"):
        await queue.add(1, job_name=name, job_id=f"{name}{len(ran)}-{time.time_ns()}")
    async with working(queue, handle):
        await wait_until_async(lambda: _dead_letter_count_is(queue, 8))
        fixed.set()
        preview = await queue.replay_dead_letters(job_name="mail", dry_run=True)
        assert (preview.matched, preview.dry_run) == (2, True)
        assert await _dead_letter_count_is(queue, 8)
        report = await queue.replay_dead_letters(job_name="mail", max_replays=1)
        assert report.affected == 2
        await wait_until_async(lambda: len(ran) == 2)
        report = await queue.replay_dead_letters()
        assert (report.affected, report.unreadable) == (1, 5)
        await wait_until_async(lambda: len(ran) == 3)
        assert (await queue.purge_dead_letters(reason="decode_failed")).affected == 5
    assert await queue.dead_letters() == []


# Fault: MAXLEN ~ silently drops unread jobs.


async def test_a_full_queue_rejects_new_jobs_and_drops_none(server, queue_name: str) -> None:
    ran: list[int] = []

    async def handle(job) -> None:
        ran.append(job.payload)

    config = QueueConfig(max_len=100)
    async with AsyncQueue(queue_name, server.url, dialect=server.dialect, config=config) as queue:
        await queue.add_many([{"payload": n} for n in range(100)])
        with pytest.raises(QueueFull):
            await queue.add(100)
        async with working(queue, handle):
            await wait_until_async(lambda: len(ran) == 100)
            await wait_until_async(lambda: empty(queue))
            await queue.add(100)
            await wait_until_async(lambda: len(ran) == 101)
    assert sorted(ran) == list(range(101))


# Fault: SCRIPT LOAD before every call, and bulk adds with options are sent one by one.


@pytest.mark.parametrize("kind", ["redis8-native", "valkey"])
async def test_scripts_are_loaded_once_and_called_by_hash(
    request, kind: str, queue_name: str
) -> None:
    binary = valkey_binary() if kind == "valkey" else request.getfixturevalue("redis86_binary")
    with RedisServer.start(binary) as server, plain_client(server.url) as client:
        async with AsyncQueue(queue_name, server.url, dialect=SERVERS[kind][1]) as queue:
            async with working(queue, fails, retry=_two_attempts()):
                for round_ in range(5):
                    jobs = [{"payload": n, "job_id": f"{round_}-{n}"} for n in range(50)]
                    delayed = [
                        {**job, "job_id": job["job_id"] + "d", "delay": timedelta(0)}
                        for job in jobs
                    ]
                    await queue.add_many([*jobs, *delayed])
                    await wait_until_async(
                        lambda n=round_: _dead_letter_count_at_least(queue, 100 * (n + 1))
                    )
            stats = client.info("commandstats")
            scripts = client.info("memory")["number_of_cached_scripts"]
    calls = {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}
    assert "eval" not in calls
    assert calls["script|load"] <= scripts
    # 500 jobs, each added and run twice: fewer than one call per add and outcome.
    assert calls["evalsha"] < 1500
    assert calls["xreadgroup"] < 500


def _two_attempts() -> Any:
    from airflow_provider_chasqui.core.retry import RetryDefaults

    return RetryDefaults(max_attempts=2, delay_ms=1, jitter_ms=1)


async def _dead_letter_count_at_least(queue: AsyncQueue, count: int) -> bool:
    return (await queue.depth()).dead >= count


# Fault: error codes (CMQ-...) exist only in the documentation.


async def test_every_error_has_its_code(queue: AsyncQueue, client) -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    for error_class in classes:
        if issubclass(error_class, ChasquiError):
            assert re.fullmatch(r"CMQ-\d{3}", error_class.code), error_class
            assert str(error_class("text")).startswith(f"[{error_class.code}] text")
    client.set(queue.keys.stream, "a string")
    with pytest.raises(ChasquiError) as caught:
        await queue.add(1)
    assert str(caught.value).startswith("[CMQ-301] ")
    assert queue.name in str(caught.value)
