"""What ChasquiMQ 1.3.0 gets wrong, each seen with the real one; the tests are named for its faults.

One test or more for each row of the table in the design, in both dialects.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core import errors
from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.config import QueueConfig, SchedulerConfig
from airflow_provider_chasqui.core.cron import Cron, Every
from airflow_provider_chasqui.core.errors import ChasquiError, QueueFull
from airflow_provider_chasqui.core.outcome import Unrecoverable
from airflow_provider_chasqui.core.repeat import fire_all
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.conftest import SERVERS
from tests.engine.conftest import PUNCTUAL, empty, until, working
from tests.support.redis_state import plain_client
from tests.support.servers import RedisServer, valkey_binary

NOW = Backoff.fixed(timedelta(milliseconds=1))


async def nothing(job: Any) -> None: ...


async def fails(job: Any) -> None:
    raise ValueError("broken")


# a handler longer than 30 s runs again beside itself


async def test_a_handler_longer_than_the_claim_is_not_run_twice(queue: AsyncQueue) -> None:
    began: Counter[str] = Counter()

    async def long(job) -> None:
        began[job.id] += 1
        await asyncio.sleep(2.0)

    await queue.add(1, job_id="long")
    config = {"claim_after": timedelta(milliseconds=500)}
    async with working(queue, long, **config) as one, working(queue, long, **config) as two:
        await until(lambda: began)
        await until(lambda: empty(queue))
        # Nobody was even offered it, not its own reader either.
        assert one.metrics.counts["reclaimed"] == two.metrics.counts["reclaimed"] == 0
    assert began == {"long": 1}


async def test_an_entry_that_waits_for_a_worker_is_kept_too(queue: AsyncQueue) -> None:
    """Read ahead behind a slow job: it is renewed or handed on, and runs once."""
    began: Counter[str] = Counter()

    async def slow(job) -> None:
        began[job.id] += 1
        await asyncio.sleep(0 if job.id.startswith("quick") else 1.5)

    await queue.add_many([{"payload": 1, "job_id": f"quick{n}"} for n in range(20)])
    await queue.add_many([{"payload": 1, "job_id": f"slow{n}"} for n in range(4)])
    config = {"claim_after": timedelta(milliseconds=600), "concurrency": 1}
    async with working(queue, slow, **config), working(queue, slow, **config):
        await until(lambda: len(began) == 24, 30)
        await until(lambda: empty(queue))
    assert set(began.values()) == {1}


async def test_a_slow_job_holds_no_other_back(queue: AsyncQueue) -> None:
    """What one consumer has read ahead, another one runs while the first is at a slow job."""
    release = asyncio.Event()
    began: list[str] = []

    async def handle(job) -> None:
        began.append(job.id)
        if job.id == "slow":
            await release.wait()

    quick = [{"payload": 1, "job_id": f"quick{n}"} for n in range(30)]
    await queue.add_many(
        [*quick, {"payload": 1, "job_id": "slow"}, {"payload": 1, "job_id": "behind"}]
    )
    async with working(queue, handle, concurrency=1):
        await until(lambda: "slow" in began)
        async with working(queue, handle, concurrency=1):
            started = time.monotonic()
            await until(lambda: "behind" in began)
            assert time.monotonic() - started < 5
            assert not release.is_set()
            release.set()
            await until(lambda: empty(queue))
    assert Counter(began).most_common(1)[0][1] == 1


# a closed worker's blocked read swallows the next job for 30 s


async def test_a_stopped_workers_blocked_read_swallows_nothing(queue: AsyncQueue) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.id)

    async with working(queue, handle, block_timeout=timedelta(milliseconds=60_000)) as first:
        await until(lambda: _reads_block(queue))
        started = time.monotonic()
        first.stop()
        await until(lambda: _gone(queue), 5)
        assert time.monotonic() - started < 3  # of a read that would block for a minute
        await queue.add(1, job_id="next")
        async with working(queue, handle, block_timeout=timedelta(milliseconds=60_000)):
            await until(lambda: ran == ["next"], 3)


async def _reads_block(queue: AsyncQueue) -> bool:
    return len(await queue.consumers()) == 1


async def _gone(queue: AsyncQueue) -> bool:
    return await queue.consumers() == []


# crash budget off by one, crashes forgotten by the next retry


@pytest.mark.parametrize(("crashes", "allowed"), [(1, 2), (2, 2), (1, 1), (3, 5)])
async def test_crashed_deliveries_count_exactly(
    queue: AsyncQueue, crashes: int, allowed: int
) -> None:
    attempts: list[int] = []

    async def handle(job) -> None:
        attempts.append(job.attempt)
        raise ValueError("broken")

    await queue.add(1, job_id="j", job_name="n", retry=RetryPolicy(allowed, NOW))
    await _crash(queue, crashes)
    async with working(queue, handle, claim_after=timedelta(milliseconds=50)):
        [letter] = await until(queue.dead_letters)
    assert attempts == list(range(crashes, allowed))
    assert letter.attempts == allowed
    assert letter.reason == "retries_exhausted"


async def _crash(queue: AsyncQueue, times: int) -> None:
    """Deliver the one job to consumers that die with it."""
    keys, drive = queue.keys, queue.client
    await drive.execute(consumer_group.create(keys, "default"))
    [_] = await drive.execute(consumer_group.read(keys, "default", "dead-0", 10, 0, 60_000))
    for number in range(1, times):
        [_] = await drive.execute(consumer_group.claim(keys, "default", f"dead-{number}", 0, 10))


# add_unique forgets after 100 ids or 100 s


async def test_unique_outlives_a_hundred_other_ids_and_the_producer(
    queue: AsyncQueue, server
) -> None:
    unique = {"id": "once", "unique": timedelta(days=1)}
    assert (await queue.add(1, **unique)).created
    await queue.add_many([{"payload": n} for n in range(300)])
    for n in range(150):
        await queue.add(n, job_id=f"other-{n}")
    assert not (await queue.add(1, **unique)).created
    async with AsyncQueue(queue.name, server.url, dialect=server.dialect) as another:
        assert not (await another.add(1, **unique)).created
    async with working(queue, nothing):
        await until(lambda: empty(queue))
    assert not (await queue.add(1, **unique)).created  # also when it is done


# one bad delayed member ends the promoter


async def test_a_bad_delayed_member_is_quarantined_and_the_rest_go_on(
    queue: AsyncQueue, client
) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.id)

    for member in (b"", b"abc", b"\xff\xff\xff\xffshort"):
        client.zadd(queue.keys.delayed, {member: 1})
    await queue.add(1, job_id="good", delay=timedelta(milliseconds=50))
    async with working(queue, handle):
        await until(lambda: ran == ["good"])
        await queue.add(1, job_id="later", delay=timedelta(milliseconds=50))
        await until(lambda: ran == ["good", "later"])
    letters = await queue.dead_letters()
    assert {letter.raw for letter in letters} == {b"", b"abc", b"\xff\xff\xff\xffshort"}
    assert {letter.reason for letter in letters} == {"malformed"}


# a repeat shorter than the tick never fires


async def test_a_repeat_shorter_than_the_tick_fires(queue: AsyncQueue) -> None:
    at: list[float] = []

    async def handle(job) -> None:
        at.append(time.monotonic())

    await queue.repeat(1, Every(150), job_name="often")
    async with working(
        queue, handle, scheduler=SchedulerConfig(poll_interval=timedelta(milliseconds=1000))
    ):
        await until(lambda: len(at) >= 8)
    assert at[7] - at[0] < 3  # 1.05 s of fires; with one a tick it would be 7


async def test_repeats_keep_their_limit_start_and_end(queue: AsyncQueue) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.name)

    now = datetime.now(UTC)
    await queue.repeat(1, Every(50), job_name="three", limit=3)
    soon = now + timedelta(milliseconds=350)
    await queue.repeat(1, Every(100), job_name="ended", end=soon, misfire=fire_all(9))
    await queue.repeat(1, Every(50), job_name="tomorrow", start=now + timedelta(days=1))
    async with working(queue, handle, scheduler=PUNCTUAL):
        await until(lambda: _repeats(queue, {"tomorrow"}))
        await until(lambda: empty(queue))
    counts = Counter(ran)
    assert counts["three"] == 3
    assert counts["ended"] == 3
    assert counts["tomorrow"] == 0


async def _repeats(queue: AsyncQueue, names: set[str]) -> bool:
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
        await until(lambda: _repeats(queue, set()))
        await until(lambda: empty(queue))
    assert len(ran) == len(set(ran)) == 40


async def test_missed_fires_are_made_up_oldest_first(queue: AsyncQueue, client) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.name)

    key = await queue.repeat(1, Every(60_000), job_name="all", misfire=fire_all(3))
    skipped = await queue.repeat(1, Every(60_000), job_name="skip")
    past = int(time.time() * 1000) - 300_000
    client.zadd(queue.keys.repeat, {key: past, skipped: past})
    async with working(queue, handle, scheduler=PUNCTUAL):
        await until(lambda: len(ran) == 3)
        await until(lambda: empty(queue))
        [one, two] = await queue.repeats()
    assert ran == ["all"] * 3
    now = int(time.time() * 1000)
    for status in (one, two):
        assert now < status.next_fire_ms <= now + 60_000
        assert (status.next_fire_ms - past) % 60_000 == 0


async def test_a_repeat_that_cannot_be_read_stops_no_other(
    queue: AsyncQueue, client, caplog
) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.name)

    for bad in (b"bad", b"\xff\xfe"):
        client.zadd(queue.keys.repeat, {bad: 1})
    client.hset(queue.keys.repeat_spec("bad"), "spec", b"\xc1")
    await queue.repeat(1, Every(50), job_name="good", limit=2)
    async with working(queue, handle, scheduler=PUNCTUAL):
        await until(lambda: ran == ["good"] * 2)
        await until(lambda: _repeats(queue, set()))
        assert client.exists(queue.keys.repeat) == 0
    assert caplog.text.count("is dropped, it cannot be read") == 2


# cron leaks milliseconds, skips the repeated DST hour, can answer in the past


async def test_cron_fires_on_the_grid_over_both_changes_of_the_clocks(queue: AsyncQueue) -> None:
    def ms(text: str) -> int:
        return int(datetime.fromisoformat(text + "+00:00").timestamp() * 1000)

    hourly = Cron("0 * * * *", "America/New_York")
    asked = ms("2027-11-07T04:30:00") + 519
    fires = []
    for _ in range(4):
        asked = hourly.next_after(asked)
        fires.append(asked)
    assert fires == [ms(f"2027-11-07T0{hour}:00:00") for hour in (5, 6, 7, 8)]
    gap = Cron("30 2 * * *", "America/New_York")
    assert gap.next_after(ms("2027-03-14T05:00:00")) == ms("2027-03-14T07:00:00")
    # What is stored is what fires: on the whole second, in the future.
    await queue.repeat(1, Cron("* * * * * *"), job_name="second")
    [status] = await queue.repeats()
    assert status.next_fire_ms % 1000 == 0
    ran: list[int] = []

    async def handle(job) -> None:
        ran.append(job.created_at_ms)

    async with working(queue, handle, scheduler=PUNCTUAL):
        await until(lambda: len(ran) >= 2)
        [status] = await queue.repeats()
    assert status.next_fire_ms % 1000 == 0
    assert all(at % 1000 < 900 for at in ran)  # soon after the second, not anywhere in it


# a destroyed group or FLUSHALL is never healed


async def test_a_destroyed_group_is_made_anew_with_one_warning(
    queue: AsyncQueue, client, caplog
) -> None:
    ran: list[int] = []

    async def handle(job) -> None:
        ran.append(job.payload)

    caplog.set_level(logging.WARNING, "chasqui")
    async with working(queue, handle), working(queue, handle):
        await queue.add(1)
        await until(lambda: ran == [1])
        client.xgroup_destroy(queue.keys.stream, "default")
        await queue.add(2)
        await until(lambda: ran == [1, 2])
        await until(lambda: empty(queue))
    assert caplog.text.count("was gone and is made anew") == 1
    assert len(caplog.records) == 1


@pytest.mark.parametrize("kind", ["redis8-native", "valkey"])
async def test_flushall_is_survived_with_one_warning(
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
            await until(lambda: ran == [1])
            client.flushall()
            client.script_flush()
            await queue.add(2)
            await until(lambda: ran == [1, 2])
            await queue.add(3, delay=timedelta(milliseconds=10))
            await until(lambda: ran == [1, 2, 3])
            await until(lambda: empty(queue))
    assert caplog.text.count("was gone and is made anew") == 1
    assert len(caplog.records) == 1


# dead consumers pile up in the group


async def test_dead_consumers_are_swept_and_a_stopped_one_leaves(
    queue: AsyncQueue, monkeypatch
) -> None:
    from airflow_provider_chasqui.engine import heartbeat

    monkeypatch.setattr(heartbeat, "_SWEEP_S", 0.2)
    keys, drive = queue.keys, queue.client
    await drive.execute(consumer_group.create(keys, "default"))
    await queue.add(1)
    for name in ("holds", "dead-1", "dead-2"):
        await drive.execute(consumer_group.read(keys, "default", name, 1, 1, 60_000))
    assert {c.name for c in await queue.consumers()} >= {"holds", "dead-1"}
    config = {"sweep_after": timedelta(milliseconds=1200), "consumer_id": "me"}
    async with working(queue, nothing, claim_after=timedelta(milliseconds=60_000), **config):
        # One that holds an entry stays: its entry must be found and claimed first.
        await until(lambda: _names(queue, {"holds", "me"}))
    assert await _names(queue, {"holds"})


async def _names(queue: AsyncQueue, expected: set[str]) -> bool:
    return {consumer.name for consumer in await queue.consumers()} == expected


# delayed jobs without an id cannot be cancelled; no reschedule


async def test_any_delayed_job_is_cancelled_and_rescheduled(queue: AsyncQueue) -> None:
    ran: list[str] = []

    async def handle(job) -> None:
        ran.append(job.id)

    hour = timedelta(hours=1)
    without = [(await queue.add(n, delay=hour)).job_id for n in range(3)]
    await queue.add(1, job_id="named", delay=hour)
    assert await queue.cancel(without[0]) == "cancelled"
    assert await queue.cancel("named") == "cancelled"
    assert await queue.reschedule(without[1], delay=timedelta(0))
    async with working(queue, handle):
        await until(lambda: ran == [without[1]])
    assert (await queue.job_status(without[2])).state == "delayed"
    assert (await queue.depth()).delayed == 1


async def test_a_job_that_waits_for_its_retry_is_cancelled_too(queue: AsyncQueue) -> None:
    job_id = (await queue.add(1, retry=RetryPolicy(5, Backoff.fixed(timedelta(hours=1))))).job_id
    async with working(queue, fails):
        await until(lambda: _state(queue, job_id, "delayed"))
        assert await queue.cancel(job_id) == "cancelled"
        assert await empty(queue)


async def _state(queue: AsyncQueue, job_id: str, state: str) -> bool:
    return (await queue.job_status(job_id)).state == state


# a result that cannot be encoded runs the job again


async def test_a_result_that_cannot_be_encoded_is_no_failure(queue: AsyncQueue) -> None:
    ran: list[str] = []

    async def handle(job) -> Any:
        ran.append(job.id)
        return object()

    async with working(queue, handle, store_results=True):
        job_id = (await queue.add(1)).job_id
        result = await queue.wait(job_id, timeout=timedelta(seconds=10))
        await until(lambda: empty(queue))
    assert ran == [job_id]
    assert "cannot be written as MessagePack" in result["chasqui_error"]


# letters keep no error text, lose the name on decode failure


async def test_letters_say_who_why_how_often_and_when(queue: AsyncQueue, client) -> None:
    before = int(time.time() * 1000)
    await queue.add(1, job_name="mail", job_id="j", retry=RetryPolicy(2, NOW))
    client.xadd(queue.keys.stream, {"d": b"\xc1", "n": "unreadable"})
    async with working(queue, fails):
        await until(lambda: _letters(queue, 2))
    by_reason = {letter.reason: letter for letter in await queue.dead_letters()}
    dead = by_reason["retries_exhausted"]
    assert (dead.job_name, dead.error, dead.attempts) == ("mail", "ValueError: broken", 2)
    assert before <= dead.failed_at_ms <= time.time() * 1000
    assert dead.job.id == "j"
    bad = by_reason["decode_failed"]
    assert (bad.job_name, bad.raw, bad.attempts) == ("unreadable", b"\xc1", 0)
    assert "not MessagePack" in bad.error


async def _letters(queue: AsyncQueue, count: int) -> bool:
    return len(await queue.dead_letters(limit=100)) == count


# replay is oldest-first only and stuck behind bad letters


async def test_replay_chooses_and_is_not_stuck_behind_bad_letters(
    queue: AsyncQueue, client
) -> None:
    healed = asyncio.Event()
    ran: list[str] = []

    async def handle(job) -> None:
        if not healed.is_set():
            raise Unrecoverable("broken")
        ran.append(job.id)

    for n in range(5):  # an unreadable one at the head
        client.xadd(queue.keys.stream, {"d": b"\xc1", "n": f"bad{n}"})
    for name in ("mail", "mail", "sms"):
        await queue.add(1, job_name=name, job_id=f"{name}{len(ran)}-{time.time_ns()}")
    async with working(queue, handle):
        await until(lambda: _letters(queue, 8))
        healed.set()
        dry = await queue.replay_dead_letters(job_name="mail", dry_run=True)
        assert (dry.matched, dry.dry_run) == (2, True)
        assert await _letters(queue, 8)
        report = await queue.replay_dead_letters(job_name="mail", max_replays=1)
        assert report.affected == 2
        await until(lambda: len(ran) == 2)
        report = await queue.replay_dead_letters()
        assert (report.affected, report.unreadable) == (1, 5)
        await until(lambda: len(ran) == 3)
        assert (await queue.purge_dead_letters(reason="decode_failed")).affected == 5
    assert await queue.dead_letters() == []


# MAXLEN ~ silently drops unread jobs


async def test_a_full_queue_refuses_and_drops_nothing(server, queue_name: str) -> None:
    ran: list[int] = []

    async def handle(job) -> None:
        ran.append(job.payload)

    config = QueueConfig(max_len=100)
    async with AsyncQueue(queue_name, server.url, dialect=server.dialect, config=config) as queue:
        await queue.add_many([{"payload": n} for n in range(100)])
        with pytest.raises(QueueFull):
            await queue.add(100)
        async with working(queue, handle):
            await until(lambda: len(ran) == 100)
            await until(lambda: empty(queue))
            await queue.add(100)
            await until(lambda: len(ran) == 101)
    assert sorted(ran) == list(range(101))


# SCRIPT LOAD before every call, bulk with options is serial


@pytest.mark.parametrize("kind", ["redis8-native", "valkey"])
async def test_scripts_are_loaded_once_and_called_by_their_name(
    request, kind: str, queue_name: str
) -> None:
    binary = valkey_binary() if kind == "valkey" else request.getfixturevalue("redis86_binary")
    with RedisServer.start(binary) as server, plain_client(server.url) as client:
        async with AsyncQueue(queue_name, server.url, dialect=SERVERS[kind][1]) as queue:
            async with working(queue, fails, retry=_two_runs()):
                for round_ in range(5):
                    jobs = [{"payload": n, "job_id": f"{round_}-{n}"} for n in range(50)]
                    later = [{**job, "id": job["id"] + "d", "delay": timedelta(0)} for job in jobs]
                    await queue.add_many([*jobs, *later])
                    await until(lambda n=round_: _letters_at_least(queue, 100 * (n + 1)))
            stats = client.info("commandstats")
            scripts = client.info("memory")["number_of_cached_scripts"]
    calls = {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}
    assert "eval" not in calls
    assert calls["script|load"] <= scripts
    # 500 jobs, each run twice and buried: by far fewer calls than there are jobs.
    assert calls["evalsha"] < 1500
    assert calls["xreadgroup"] < 500


def _two_runs() -> Any:
    from airflow_provider_chasqui.core.retry import RetryDefaults

    return RetryDefaults(max_attempts=2, delay_ms=1, jitter_ms=1)


async def _letters_at_least(queue: AsyncQueue, count: int) -> bool:
    return (await queue.depth()).dead >= count


# CMQ codes only in the docs


async def test_every_error_carries_its_code(queue: AsyncQueue, client) -> None:
    family = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    for kind in family:
        if issubclass(kind, ChasquiError):
            assert re.fullmatch(r"CMQ-\d{3}", kind.code), kind
            assert str(kind("text")).startswith(f"[{kind.code}] text")
    client.set(queue.keys.stream, "mine")
    with pytest.raises(ChasquiError) as caught:
        await queue.add(1)
    assert str(caught.value).startswith("[CMQ-301] ")
    assert queue.name in str(caught.value)
