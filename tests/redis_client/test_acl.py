"""The ACL rules in docs/security-acl.md are sufficient, and each of them is necessary."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_chasqui.core.batch import BatchPosition
from airflow_provider_chasqui.core.codec import encode_job
from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.commands.wait import count_missing_bits, scan_queue
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.errors import JobFailed, PermissionDenied
from airflow_provider_chasqui.core.event_outcomes import EventOutcomes
from airflow_provider_chasqui.core.job import Job
from airflow_provider_chasqui.core.outcome import Unrecoverable
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.engine.exporter import QueueExporter
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.redis_client.target import RedisTarget
from tests.redis_client.conftest import Open, admin, stream_length
from tests.support.servers import RedisServer, valkey_binary

PAGE = Path(__file__).parents[2] / "docs" / "security-acl.md"
# Commands of Redis 8.2 and newer.
NEW = {"+xackdel"}
# redis-py sends its name and version to the server, and ignores a refusal.
OPTIONAL = {"toplevel client|setinfo"}


def rules(role: str) -> list[str]:
    """Return the rules of a role as the page lists them."""
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
    """Return the rules of a role that the server knows."""
    new = "valkey" not in server.binary.name
    return [rule for rule in rules(role) if new or rule not in NEW]


def create_user(server: RedisServer, user: str, queue: str, granted: list[str]) -> RedisTarget:
    """Create a user with some rules for one queue, and return its target."""
    key = f"~{{chasqui:{queue}}}:*"
    with admin(server) as client:
        client.execute_command("ACL", "SETUSER", user, "reset", "on", ">pw", key, *granted)
    return RedisTarget((("127.0.0.1", server.port),), username=user, password="pw", retries=0)


def produce(queue: Queue) -> None:
    """Call every method of a producer."""
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
    queue.cancel("unknown")
    queue.add(1, job_id="unknown")
    queue.cancel("unknown")
    queue.add(1, job_id="unknown", delay=hour)
    queue.add_batch(range(3), batch_id="b")
    queue.add_batch(range(3), batch_id="later", delay=hour)
    queue.cancel("batch:later:0:1")
    queue.attach_batch("later", "me")
    queue.cancel_batch("later", owner="me")
    queue.batch_progress("b")
    queue.dead_job_ids("b")
    queue.job_status(job.job_id)
    queue.job_status("batch:b:0:1")
    queue.job_status("unknown")
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
        queue.wait("unknown", timeout=timedelta(milliseconds=30))
    # What a waiting task reads if workers set no batch bits.
    outcomes = EventOutcomes()
    outcomes.add(BatchPosition("b", 0, 1), done=True)
    queue.client.run_flow(count_missing_bits(queue.keys, "b", outcomes))
    queue.client.run_flow(scan_queue(queue.keys, {"unknown"}, {"b"}))


def create_dead_letters(server: RedisServer, name: str) -> None:
    """Create two dead letters as a user with all permissions; one belongs to a batch."""
    with Queue(name, server.url) as queue:
        queue.add({"doomed": 1})
        queue.add_batch(range(1), batch_id="doomed")
        queue.client.execute(consumer_group.create(queue.keys, "default"))
        rows = queue.client.execute(consumer_group.read(queue.keys, "default", "c", 10, 0))
        dead_letters = []
        for row in rows:
            entry = consumer_group.parse_entry(row, 10**6)
            assert isinstance(entry, consumer_group.StreamEntry)
            dead_letters.append(
                consumer_group.NewDeadLetter(
                    entry.id, encode_job(entry.job), "", "x", job_id=entry.job.id
                )
            )
        queue.client.execute(consumer_group.move_to_dlq(queue.keys, "default", "c", dead_letters))


async def work(target: RedisTarget, name: str) -> None:
    """Run workers that use results, retries, dead letters, delays, repeats and a batch."""

    def handle(job: Job) -> object:
        instruction = job.payload if isinstance(job.payload, str) else ""
        if instruction == "die":
            raise Unrecoverable("as instructed")
        if instruction == "fail" and job.attempt == 0:
            raise RuntimeError("as instructed")
        if instruction == "sleep":
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
        jobs = [await queue.add(instruction) for instruction in ("ok", "fail", "sleep")]
        jobs.append(await queue.add("ok", job_id="later", delay=soon))
        dead = await queue.add("die")
        batch = await queue.add_batch(["ok", "die", "fail"], batch_id="worked")
        delayed = await queue.add("ok", delay=timedelta(milliseconds=5))
        await queue.cancel(delayed.job_id)
        await queue.cancel((await queue.add("ok")).job_id)
        await queue.add_batch(["sleep"], batch_id="cancelled")
        await queue.cancel_batch("cancelled")
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
            # A consumer that stopped removes its name from the group.
            while {member.name for member in await queue.consumers()} - {consumer_id}:
                await asyncio.sleep(0.02)
            consumer.stop()
            await running


def test_a_producer_may_call_all_its_methods(guarded: RedisServer, queue_name: str) -> None:
    create_dead_letters(guarded, queue_name)
    target = create_user(guarded, "producer", queue_name, known(guarded, "producer"))
    with Queue(queue_name, target) as queue:
        produce(queue)


def denied(server: RedisServer, user: str) -> set[str]:
    """Return the commands that the server refused a user, also those whose error was ignored."""
    with admin(server) as client:
        return {
            f"{entry['context']} {entry['object']}"
            for entry in client.acl_log(100)
            if entry["username"] == user
        }


def test_a_worker_may_use_all_its_features(guarded: RedisServer, queue_name: str) -> None:
    granted = known(guarded, "producer") + known(guarded, "worker")
    target = create_user(guarded, "worker", queue_name, granted)
    with admin(guarded) as client:
        client.acl_log_reset()
    asyncio.run(work(target, queue_name))
    assert denied(guarded, "worker") - OPTIONAL == set()


def test_the_short_rules_are_sufficient_for_both_roles(
    guarded: RedisServer, queue_name: str
) -> None:
    create_dead_letters(guarded, queue_name)
    target = create_user(guarded, "short", queue_name, known(guarded, "short"))
    with admin(guarded) as client:
        client.script_flush()
        client.acl_log_reset()
    with Queue(queue_name, target) as queue:
        produce(queue)
    target = create_user(guarded, "short", f"{queue_name}-w", known(guarded, "short"))
    asyncio.run(work(target, f"{queue_name}-w"))
    assert denied(guarded, "short") - OPTIONAL == set()


def test_every_rule_of_a_producer_is_necessary(guarded: RedisServer, queue_name: str) -> None:
    granted = known(guarded, "producer")
    unnecessary = []
    for number, rule in enumerate(granted):
        name = f"{queue_name}-{number}"
        create_dead_letters(guarded, name)
        with admin(guarded) as client:
            client.script_flush()
        others = [other for other in granted if other != rule]
        target = create_user(guarded, f"p{number}", name, others)
        with Queue(name, target) as queue:
            try:
                produce(queue)
            except PermissionDenied:
                continue
        unnecessary.append(rule)
    assert unnecessary == []


def test_another_queue_is_not_accessible(
    open_queue: Open, guarded: RedisServer, queue_name: str
) -> None:
    target = create_user(guarded, "other", f"{queue_name}-other", known(guarded, "producer"))
    queue = open_queue(queue_name, target)
    with pytest.raises(PermissionDenied, match=r"^\[CMQ-303\] .*does not permit this user"):
        queue.add({"a": 1})
    with pytest.raises(PermissionDenied):
        queue.add_batch(range(300))
    assert stream_length(guarded, queue_name) == 0


@pytest.mark.parametrize("missing", ["+xadd", "+evalsha", "+script|load", "+hset", "+eval"])
def test_a_missing_permission_is_named_and_the_batch_is_not_finalized(
    open_queue: Open, guarded: RedisServer, queue_name: str, missing: str
) -> None:
    with admin(guarded) as client:
        client.script_flush()
    granted = [rule for rule in known(guarded, "producer") if rule != missing]
    queue = open_queue(queue_name, create_user(guarded, f"no{missing}", queue_name, granted))
    with pytest.raises(PermissionDenied) as info:
        queue.add_batch(range(300), batch_id="b")
    assert missing.removeprefix("+").partition("|")[0] in str(info.value).lower()
    with admin(guarded) as client:
        assert client.hget(f"{{chasqui:{queue_name}}}:batch:b", "total") is None


def export(server: RedisServer, queue_name: str, granted: list[str]) -> set[str]:
    """Read a queue as the exporter does, and return the commands that the server refused."""
    target = create_user(server, "exporter", queue_name, granted)
    with admin(server) as client:
        client.acl_log_reset()
    exporter = QueueExporter(target, (queue_name,), batches=True)
    with suppress(PermissionDenied):
        exporter.read()
    exporter.close()
    return denied(server, "exporter") - OPTIONAL


def test_the_rules_of_the_exporter_are_sufficient_and_each_is_necessary(
    guarded: RedisServer, queue_name: str
) -> None:
    with Queue(queue_name, guarded.url) as queue:
        queue.client.execute(consumer_group.create(queue.keys, "default"))
        queue.add_batch(range(3), batch_id="b")
        queue.add(1, delay=timedelta(hours=1))
        queue.repeat(1, Every(3_600_000))
    granted = known(guarded, "exporter")
    assert export(guarded, queue_name, granted) == set()
    unnecessary = [
        rule
        for rule in granted
        if not export(guarded, queue_name, [other for other in granted if other != rule])
    ]
    assert unnecessary == []
