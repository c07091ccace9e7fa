"""A worker process for the crash tests: it runs jobs by their payload, and notes every run."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from dataclasses import replace
from datetime import timedelta
from typing import Any

import redis.asyncio

from airflow_provider_chasqui.core.config import ConsumerConfig, PromoterConfig, SchedulerConfig
from airflow_provider_chasqui.core.outcome import Unrecoverable
from airflow_provider_chasqui.core.retry import RetryDefaults
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.redis_client.target import RedisTarget

NOTES = "notes:{}"


def settings(**changes: Any) -> ConsumerConfig:
    """The same for every worker of a test: what a dead one held is taken over soon."""
    given: dict[str, Any] = {
        "block_timeout": timedelta(milliseconds=200),
        "claim_after": timedelta(milliseconds=400),
        "promoter": PromoterConfig(
            poll_interval=timedelta(milliseconds=20),
            standby_poll_interval=timedelta(milliseconds=50),
            lock_ttl=timedelta(seconds=1),
        ),
        "scheduler": SchedulerConfig(
            poll_interval=timedelta(milliseconds=50), lock_ttl=timedelta(seconds=1)
        ),
        "retry": RetryDefaults(delay_ms=1, jitter_ms=1),
    }
    return ConsumerConfig(**given | changes)


def handler(notes: Any, queue: str) -> Any:
    """Payload: what to do (`fail`, `always fail`, `die`), or how long to take in seconds."""

    async def handle(job: Any) -> None:
        await notes.rpush(NOTES.format(queue), f"{job.id}|{job.attempt}")
        match job.payload:
            case "fail" if job.attempt == 0:
                raise ValueError("the first run fails")
            case "always fail":
                raise ValueError("every run fails")
            case "die":
                raise Unrecoverable("hopeless")
            case int() | float() as seconds:
                await asyncio.sleep(seconds)
            case {"plan": plan}:
                await follow(plan, job)

    return handle


async def follow(plan: dict[str, Any], job: Any) -> None:
    """The plans that tests/interop/peer.py follows, for fleets of both."""
    await asyncio.sleep(plan.get("sleep_ms", 0) / 1000)
    if plan.get("die"):
        raise Unrecoverable("told to die")
    if job.attempt < plan.get("fail", 0):
        raise ValueError("told to fail")


async def work(url: str, dialect: str, name: str, notes_url: str, changes: dict[str, Any]) -> None:
    notes = redis.asyncio.from_url(notes_url)
    target = replace(RedisTarget.coerce(url), client_name=f"ours-{os.getpid()}")
    async with AsyncQueue(name, target, dialect=dialect) as queue:
        consumer = Consumer(queue, handler(notes, name), settings(**changes))
        consumer.stop_on(signal.SIGTERM, signal.SIGINT)
        await consumer.run()
    await notes.aclose()


def main(log: str, *args: Any) -> None:
    logging.basicConfig(filename=log, level=logging.INFO, format="%(message)s")
    asyncio.run(work(*args))
