"""Producer functions that the tests run in other processes, which must be able to import them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from typing import Any

from airflow_provider_chasqui.queue import Queue


def send_batch(url: str, dialect: str, name: str, batch: str, count: int) -> tuple[int, int]:
    """Send one batch; return its numbers of jobs and of parts."""
    with Queue(name, url, dialect=dialect) as queue:
        sent = queue.add_batch(range(count), batch_id=batch, job_name="part")
        return sent.total, sent.parts


def add_unique(url: str, dialect: str, name: str, ids: int) -> int:
    """Add every id with deduplication, singly and in bulk; return how many jobs were created."""
    hour = timedelta(hours=1)
    with Queue(name, url, dialect=dialect) as queue:
        created = sum(queue.add(i, job_id=f"one-{i}", dedup_ttl=hour).created for i in range(ids))
        immediate = [{"payload": i, "job_id": f"many-{i}", "dedup_ttl": hour} for i in range(ids)]
        delayed = [
            {"payload": i, "job_id": f"later-{i}", "dedup_ttl": hour, "delay": hour}
            for i in range(ids)
        ]
        return created + sum(job.created for job in queue.add_many(immediate + delayed))


def in_processes(count: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Run a function in `count` new processes at the same time; return its results."""
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(function, *args) for _ in range(count)]
        return [future.result(timeout=50) for future in futures]
