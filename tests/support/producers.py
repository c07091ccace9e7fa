"""What other processes do in the tests of producers, where they can import it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from typing import Any

from airflow_provider_chasqui.queue import Queue


def send_batch(url: str, dialect: str, name: str, batch: str, count: int) -> tuple[int, int]:
    with Queue(name, url, dialect=dialect) as queue:
        sent = queue.add_batch(range(count), batch_id=batch, job_name="part")
        return sent.total, sent.parts


def add_unique(url: str, dialect: str, name: str, ids: int) -> int:
    """Add every id as unique, one by one and in bulk; return how many of them were fresh."""
    hour = timedelta(hours=1)
    with Queue(name, url, dialect=dialect) as queue:
        fresh = sum(queue.add(i, job_id=f"one-{i}", dedup_ttl=hour).created for i in range(ids))
        jobs = [{"payload": i, "job_id": f"many-{i}", "dedup_ttl": hour} for i in range(ids)]
        later = [
            {"payload": i, "job_id": f"later-{i}", "dedup_ttl": hour, "delay": hour}
            for i in range(ids)
        ]
        return fresh + sum(added.created for added in queue.add_many(jobs + later))


def in_processes(count: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """Run the same work in so many fresh processes at the same time."""
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        return [
            each.result(timeout=50) for each in [pool.submit(work, *args) for _ in range(count)]
        ]
