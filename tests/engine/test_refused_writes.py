"""A worker whose writes are refused loses nothing, repeats nothing, and continues afterwards.

The user of the worker lacks one command, as after a mistake in the ACL rules. The worker keeps the
outcomes and writes them when the command is allowed again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from datetime import timedelta

import pytest

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.outcome import Unrecoverable
from airflow_provider_chasqui.core.retry import RetryDefaults
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.engine.conftest import PROMPT, PUNCTUAL
from tests.support.redis_state import plain_client
from tests.support.waiting import wait_until_async

CONFIG = ConsumerConfig(
    block_timeout=timedelta(milliseconds=100),
    claim_after=timedelta(milliseconds=600),
    retry=RetryDefaults(max_attempts=2, delay_ms=1, jitter_ms=0),
    promoter=PROMPT,
    scheduler=PUNCTUAL,
    store_results=True,
)


class RestrictedWorker:
    """A worker whose user lacks some commands until `allow` is called."""

    def __init__(self, server, queue_name: str, *refused: str):
        self.server = server
        self.name = queue_name
        self.runs: Counter[str] = Counter()
        self.tasks: list[asyncio.Task[None]] = []
        self.set_rules("reset", "on", ">pw", "allkeys", "+@all", *refused)

    def set_rules(self, *rules: str) -> None:
        with plain_client(self.server.url) as client:
            client.execute_command("ACL", "SETUSER", self.name, *rules)

    def allow(self) -> None:
        self.set_rules("+@all")

    async def handle(self, job) -> object:
        self.runs[f"{job.id}#{job.attempt}"] += 1
        if job.payload == "fail" and job.attempt == 0:
            raise RuntimeError("as instructed")
        if job.payload == "die":
            raise Unrecoverable("as instructed")
        return "result"

    async def __aenter__(self) -> RestrictedWorker:
        url = self.server.url.replace("redis://", f"redis://{self.name}:pw@")
        self.queue = AsyncQueue(self.name, url, dialect=self.server.dialect)
        self.consumer = Consumer(self.queue, self.handle, CONFIG)
        self.tasks.append(asyncio.create_task(self.consumer.run()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.allow()
        self.consumer.stop()
        await asyncio.gather(*self.tasks)
        await self.queue.close()
        with plain_client(self.server.url) as client:
            client.execute_command("ACL", "DELUSER", self.name)


@pytest.mark.parametrize("refused", ["-zadd", "-setbit", "ack", "-set"])
async def test_outcomes_wait_until_they_are_allowed(server, queue_name, refused, caplog):
    if refused == "ack":
        refused = "-xackdel" if server.dialect == "native" else "-xdel"
    caplog.set_level(logging.WARNING, "chasqui")
    payloads = ["ok", "fail", "die", "ok", "fail", "die"]
    async with AsyncQueue(queue_name, server.url, dialect=server.dialect) as queue:
        await queue.add_batch(payloads, batch_id="b")
        async with RestrictedWorker(server, queue_name, refused) as worker:
            await wait_until_async(lambda: len(worker.runs) >= 6)
            await asyncio.sleep(1.5)  # longer than claim_after: no job may be claimed and run again
            progress = await queue.batch_progress("b")
            # Nothing is lost: every job has an outcome, or waits, or is still pending.
            depth = await queue.depth()
            assert progress.done + depth.dead + depth.running + depth.waiting + depth.delayed == 6
            assert progress.dead == depth.dead
            assert max(worker.runs.values()) == 1
            worker.allow()
            progress = await queue.wait_batch("b", timeout=timedelta(seconds=20))
            assert (progress.done, progress.dead) == (4, 2)
            assert (await queue.depth()).dead == 2
            assert max(worker.runs.values()) == 1
    lines = Counter(record.getMessage() for record in caplog.records if "CMQ-303" in record.message)
    assert lines
    assert max(lines.values()) == 1


async def test_a_delayed_job_runs_once_although_the_promotion_is_refused(server, queue_name):
    """Before, the job was added to the stream again and again and never left the delayed set."""
    async with AsyncQueue(queue_name, server.url, dialect=server.dialect) as queue:
        job = await queue.add("ok", delay=timedelta(milliseconds=50))
        async with RestrictedWorker(server, queue_name, "-zremrangebyrank") as worker:
            await asyncio.sleep(1)
            assert worker.runs == {}
            assert (await queue.depth()).delayed == 1
            worker.allow()
            await wait_until_async(lambda: bool(worker.runs))
            await asyncio.sleep(0.3)
        assert worker.runs == {f"{job.job_id}#0": 1}


async def test_a_repeat_keeps_its_limit_although_the_count_is_refused(server, queue_name):
    async with AsyncQueue(queue_name, server.url, dialect=server.dialect) as queue:
        await queue.repeat("ok", Every(50), job_name="r", limit=3)
        async with RestrictedWorker(server, queue_name, "-hset") as worker:
            await asyncio.sleep(1)
            assert worker.runs == {}
            worker.allow()
            await wait_until_async(lambda: len(worker.runs) == 3)
            await asyncio.sleep(0.3)
        assert len(worker.runs) == 3
        assert await queue.repeats() == []
