"""Worker process of the crash tests. The payload decides the outcome."""

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

RUNS_KEY = "runs:{}"


def settings(**changes: Any) -> ConsumerConfig:
    """Return settings with which the entries of a dead worker are claimed soon."""
    defaults: dict[str, Any] = {
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
    return ConsumerConfig(**defaults | changes)


def handler(runs_client: Any, queue: str) -> Any:
    """Return a handler of `fail`, `always fail`, `die`, plans, and durations in seconds."""

    async def handle(job: Any) -> None:
        await runs_client.rpush(RUNS_KEY.format(queue), f"{job.id}|{job.attempt}")
        match job.payload:
            case "fail" if job.attempt == 0:
                raise ValueError("the first run fails")
            case "always fail":
                raise ValueError("every run fails")
            case "die":
                raise Unrecoverable("planned unrecoverable error")
            case int() | float() as seconds:
                await asyncio.sleep(seconds)
            case {"plan": plan}:
                await follow(plan, job)

    return handle


async def follow(plan: dict[str, Any], job: Any) -> None:
    """Follow a plan in the format of tests/interop/peer.py."""
    await asyncio.sleep(plan.get("sleep_ms", 0) / 1000)
    if plan.get("die"):
        raise Unrecoverable("planned unrecoverable error")
    if job.attempt < plan.get("fail", 0):
        raise ValueError("planned failure")


async def work(url: str, dialect: str, name: str, runs_url: str, changes: dict[str, Any]) -> None:
    runs_client = redis.asyncio.from_url(runs_url)
    target = replace(RedisTarget.coerce(url), client_name=f"chasqui-{os.getpid()}")
    async with AsyncQueue(name, target, dialect=dialect) as queue:
        consumer = Consumer(queue, handler(runs_client, name), settings(**changes))
        consumer.stop_on(signal.SIGTERM, signal.SIGINT)
        await consumer.run()
    await runs_client.aclose()


def main(log: str, *args: Any) -> None:
    logging.basicConfig(filename=log, level=logging.INFO, format="%(message)s")
    asyncio.run(work(*args))
