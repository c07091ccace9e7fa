"""The ACL rules in docs/security-acl.md are enough, and none of them is too much."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_chasqui.core.codec import encode_job
from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.errors import JobFailed, PermissionDenied
from airflow_provider_chasqui.core.job import Job
from airflow_provider_chasqui.core.outcome import Unrecoverable
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.redis_client.target import RedisTarget
from tests.redis_client.conftest import Open, admin, stream_length
from tests.support.servers import RedisServer, valkey_binary

PAGE = Path(__file__).parents[2] / "docs" / "security-acl.md"
# Only on Redis 8.2 and newer.
NEW = {"+xackdel"}
# redis-py tells the server its name and version, and does not mind a refusal.
OPTIONAL = {"toplevel client|setinfo"}


def rules(role: str) -> list[str]:
    """The rules of a role, as the page gives them."""
    block = re.search(rf"<!-- {role} -->\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block, role
    return block[1].split()


@pytest.fixture(scope="module", params=["redis8", "valkey"])
def guarded(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    native = request.param == "redis8"
    binary = request.getfixturevalue("redis86_binary") if native else valkey_binary()
    with RedisServer.start(binary) as server:
        yield server


def known(server: RedisServer, role: str) -> list[str]:
    new = "valkey" not in server.binary.name
    return [rule for rule in rules(role) if new or rule not in NEW]


def let_in(server: RedisServer, user: str, queue: str, granted: list[str]) -> RedisTarget:
    key = f"~{{chasqui:{queue}}}:*"
    with admin(server) as client:
        client.execute_command("ACL", "SETUSER", user, "reset", "on", ">pw", key, *granted)
    return RedisTarget((("127.0.0.1", server.port),), username=user, password="pw", retries=0)


def produce(queue: Queue) -> None:
    """Every verb of a producer."""
    hour, minute = timedelta(hours=1), timedelta(minutes=1)
    job = queue.add({"a": 1}, job_name="n")
    queue.add(1, job_id="u", dedup_ttl=minute)
    queue.add_many([{"payload": n} for n in range(3)])
    queue.add(1, job_id="d", delay=hour)
    plain = queue.add(1, delay=hour)
    queue.add(1, job_id="du", delay=hour, dedup_ttl=minute)
    queue.reschedule("d", delay=2 * hour)
    queue.cancel("d")
    queue.cancel(plain.job_id)
    queue.cancel("nobody")
    queue.add_batch(range(3), batch_id="b")
    queue.add_batch(range(3), batch_id="later", delay=hour)
    queue.cancel("batch:later:0:1")
    queue.batch_progress("b")
    queue.dead_job_ids("b")
    queue.job_status(job.job_id)
    queue.job_status("batch:b:0:1")
    queue.job_status("nobody")
    queue.result(job.job_id)
    queue.results([job.job_id])
    queue.depth()
    queue.consumers()
    queue.events()
    queue.last_event_id()
    queue.repeat(1, Every(60_000), job_name="r")
    queue.repeat(1, Every(60_000), job_name="r", limit=3)
    queue.repeats()
    queue.delete_repeat("r::every:60000")
    queue.replay_dead_letters()
    queue.dead_letters(newest_first=True)
    queue.purge_dead_letters()
    with pytest.raises(TimeoutError):
        queue.wait("nobody", timeout=timedelta(milliseconds=30))


def bury_two(server: RedisServer, name: str) -> None:
    """Two letters, one of them of a batch, written by somebody with all rights."""
    with Queue(name, server.url) as queue:
        queue.add({"doomed": 1})
        queue.add_batch(range(1), batch_id="doomed")
        queue.client.execute(consumer_group.create(queue.keys, "default"))
        raw = queue.client.execute(consumer_group.read(queue.keys, "default", "c", 10, 0, 30_000))
        burials = []
        for entry in (consumer_group.parse_entry(each, 10**6) for each in raw):
            assert isinstance(entry, consumer_group.StreamEntry)
            burial = consumer_group.NewDeadLetter(
                entry.id, encode_job(entry.job), "", "x", job_id=entry.job.id
            )
            burials.append(burial)
        queue.client.execute(consumer_group.move_to_dlq(queue.keys, "default", burials))


async def work(target: RedisTarget, name: str) -> None:
    """A worker with everything on: results, retries, letters, delays, repeats, a batch, a sweep."""

    def handle(job: Job) -> object:
        plan = job.payload if isinstance(job.payload, str) else ""
        if plan == "die":
            raise Unrecoverable("told to")
        if plan == "fail" and job.attempt == 0:
            raise RuntimeError("told to")
        if plan == "sleep":
            time.sleep(0.5)
        return 1

    config = ConsumerConfig(
        store_results=True,
        block_timeout=timedelta(milliseconds=100),
        claim_after=timedelta(milliseconds=300),
        consumer_idle_ttl=timedelta(milliseconds=300),
    )
    async with AsyncQueue(name, target) as queue:
        soon = timedelta(milliseconds=50)
        jobs = [await queue.add(plan) for plan in ("ok", "fail", "sleep")]
        jobs.append(await queue.add("ok", job_id="later", delay=soon))
        dead = await queue.add("die")
        batch = await queue.add_batch(["ok", "die", "fail"], batch_id="worked")
        asked = await queue.add("ok", delay=timedelta(milliseconds=5))
        await queue.cancel(asked.job_id)
        await queue.cancel((await queue.add("ok")).job_id)
        await queue.repeat("ok", Every(200), job_name="r", limit=2)
        for consumer_id in ("first", "second"):
            consumer = Consumer(queue, handle, replace(config, consumer_id=consumer_id))
            running = asyncio.create_task(consumer.run())
            for job in jobs:
                assert await queue.wait(job.job_id) == 1
            with pytest.raises(JobFailed):
                await queue.wait(dead.job_id)
            assert (await queue.wait_batch(batch.batch_id)).dead == 1
            while await queue.repeats():
                await asyncio.sleep(0.02)
            # One that ended takes its name out of the group.
            while {each.name for each in await queue.consumers()} - {consumer_id}:
                await asyncio.sleep(0.02)
            consumer.stop()
            await running


def test_a_producer_can_do_all_its_verbs(guarded: RedisServer, queue_name: str) -> None:
    bury_two(guarded, queue_name)
    target = let_in(guarded, "producer", queue_name, known(guarded, "producer"))
    with Queue(queue_name, target) as queue:
        produce(queue)


def denied(server: RedisServer, user: str) -> set[str]:
    """What the server refused a user, also where nobody heard of it."""
    with admin(server) as client:
        return {
            f"{entry['context']} {entry['object']}"
            for entry in client.acl_log(100)
            if entry["username"] == user
        }


def test_a_worker_can_do_all_its_steps(guarded: RedisServer, queue_name: str) -> None:
    granted = known(guarded, "producer") + known(guarded, "worker")
    target = let_in(guarded, "worker", queue_name, granted)
    with admin(guarded) as client:
        client.acl_log_reset()
    asyncio.run(work(target, queue_name))
    assert denied(guarded, "worker") - OPTIONAL == set()


def test_the_short_way_is_enough_for_both(guarded: RedisServer, queue_name: str) -> None:
    bury_two(guarded, queue_name)
    target = let_in(guarded, "short", queue_name, known(guarded, "short"))
    with admin(guarded) as client:
        client.script_flush()
        client.acl_log_reset()
    with Queue(queue_name, target) as queue:
        produce(queue)
    target = let_in(guarded, "short", f"{queue_name}-w", known(guarded, "short"))
    asyncio.run(work(target, f"{queue_name}-w"))
    assert denied(guarded, "short") - OPTIONAL == set()


def test_no_rule_of_a_producer_is_too_much(guarded: RedisServer, queue_name: str) -> None:
    granted = known(guarded, "producer")
    needless = []
    for number, rule in enumerate(granted):
        name = f"{queue_name}-{number}"
        bury_two(guarded, name)
        with admin(guarded) as client:
            client.script_flush()
        target = let_in(guarded, f"p{number}", name, [each for each in granted if each != rule])
        with Queue(name, target) as queue:
            try:
                produce(queue)
            except PermissionDenied:
                continue
        needless.append(rule)
    assert needless == []


def test_another_queue_is_out_of_reach(
    open_queue: Open, guarded: RedisServer, queue_name: str
) -> None:
    target = let_in(guarded, "other", f"{queue_name}-other", known(guarded, "producer"))
    queue = open_queue(queue_name, target)
    with pytest.raises(PermissionDenied, match=r"^\[CMQ-303\] .*does not let this user do that"):
        queue.add({"a": 1})
    with pytest.raises(PermissionDenied):
        queue.add_batch(range(300))
    assert stream_length(guarded, queue_name) == 0


@pytest.mark.parametrize("lost", ["+xadd", "+evalsha", "+script|load", "+hset", "+eval"])
def test_a_missing_right_is_named_and_nothing_is_written(
    open_queue: Open, guarded: RedisServer, queue_name: str, lost: str
) -> None:
    with admin(guarded) as client:
        client.script_flush()
    granted = [rule for rule in known(guarded, "producer") if rule != lost]
    queue = open_queue(queue_name, let_in(guarded, f"no{lost}", queue_name, granted))
    with pytest.raises(PermissionDenied) as caught:
        queue.add_batch(range(300), batch_id="b")
    assert lost.removeprefix("+").partition("|")[0] in str(caught.value).lower()
    with admin(guarded) as client:
        assert client.hget(f"{{chasqui:{queue_name}}}:batch:b", "total") is None
