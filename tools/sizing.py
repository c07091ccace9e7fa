"""Measure the memory that jobs take on the server (the table in docs/sizing.md).

python -m tools.sizing [--jobs 20000]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import redis

from airflow_provider_chasqui import Consumer, ConsumerConfig, LeaseQueue, NewJob, Queue
from airflow_provider_chasqui.testing.embedded_server import EmbeddedServer

QUEUE_NAME = "sizing"
HOUR = timedelta(hours=1)
ERROR = "ConnectionError: the mail server refused (smtp.example.org:25)"
IDLE_TIMEOUT = 60.0
Fill = Callable[[Queue, int], None]


def random_payload() -> bytes:
    """Return a payload of 110 bytes as MessagePack, different each time."""
    return os.urandom(108)


def add_waiting(queue: Queue, jobs: int) -> None:
    """Add jobs that wait."""
    queue.add_many(NewJob(random_payload()) for _ in range(jobs))


def add_batch(queue: Queue, jobs: int) -> None:
    """Add jobs of a batch."""
    queue.add_batch((random_payload() for _ in range(jobs)), batch_id="b")


def add_delayed(queue: Queue, jobs: int) -> None:
    """Add delayed jobs."""
    queue.add_many(NewJob(random_payload(), delay=HOUR) for _ in range(jobs))


def add_delayed_with_id(queue: Queue, jobs: int) -> None:
    """Add delayed jobs with explicit ids."""
    queue.add_many(
        NewJob(random_payload(), job_id=f"order-{n:012}", delay=HOUR) for n in range(jobs)
    )


def add_dead_letters(queue: Queue, jobs: int) -> None:
    """Add jobs and move them to the DLQ."""
    add_waiting(queue, jobs)
    with LeaseQueue(queue.name, queue.target) as lease_queue:
        while leases := lease_queue.lease("sizing", 1000):
            lease_queue.dead_letter(*leases, error=ERROR)


def add_with_dedup_id(queue: Queue, jobs: int) -> None:
    """Add jobs with dedup ids. `measure` subtracts the memory of the jobs themselves."""
    queue.add_many(
        NewJob(random_payload(), job_id=f"order-{n:018}", dedup_ttl=HOUR) for n in range(jobs)
    )


# In the order of the table in docs/sizing.md.
FILLS: dict[str, Fill] = {
    "waiting": add_waiting,
    "waiting, in a batch": add_batch,
    "delayed": add_delayed,
    "delayed, with an id": add_delayed_with_id,
    "dead letter": add_dead_letters,
    "dedup id": add_with_dedup_id,
}


async def run_jobs(queue_name: str, url: str, jobs: int) -> None:
    """Run a number of jobs, which emit events."""

    async def handle(job: Any) -> None: ...

    consumer = Consumer(queue_name, handle, ConsumerConfig(), server=url)
    running = asyncio.create_task(consumer.run())
    with Queue(queue_name, url) as queue:
        batch = await asyncio.to_thread(queue.add_batch, range(jobs))
        await asyncio.to_thread(queue.wait_batch, batch.batch_id)
    consumer.stop()
    await running


def idle_memory(admin: redis.Redis) -> int:
    """Return the memory of the server when nothing but data takes any.

    The server frees deleted keys in a background thread, and the buffers of a client when it has
    noticed that the client has disconnected. Both can take a while on a busy machine.

    :param admin: the only client that stays connected.
    :raises TimeoutError: if the server does not become idle.
    """
    deadline = time.monotonic() + IDLE_TIMEOUT
    while True:
        info = admin.info()
        if info["connected_clients"] == 1 and info["lazyfree_pending_objects"] == 0:
            return int(admin.info("memory")["used_memory"])
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"after {IDLE_TIMEOUT:.0f} s the server has {info['connected_clients']} clients "
                f"and {info['lazyfree_pending_objects']} objects to free; expected 1 and 0"
            )
        time.sleep(0.05)


def measure(jobs: int) -> dict[str, float]:
    """Return the bytes per job of each kind, and the size of the events stream at its limit.

    :param jobs: the number of jobs of each kind.
    """
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as admin:
        sizes: dict[str, float] = {}
        for name, fill in FILLS.items():
            with Queue(QUEUE_NAME, server.url) as queue:
                fill(queue, 10)  # loads the scripts, which also take memory
            admin.flushall()
            before = idle_memory(admin)
            with Queue(QUEUE_NAME, server.url) as queue:
                fill(queue, jobs)
            sizes[name] = (idle_memory(admin) - before) / jobs
            admin.flushall()
        sizes["dedup id"] -= sizes["waiting"]
        asyncio.run(run_jobs(QUEUE_NAME, server.url, ConsumerConfig().max_events * 3 // 4))
        events_key = f"{{chasqui:{QUEUE_NAME}}}:events"
        sizes["events stream"] = admin.memory_usage(events_key, samples=0) or 0
        return sizes


def main() -> None:
    """Print the measured sizes."""
    parser = argparse.ArgumentParser(prog="python -m tools.sizing", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000, help="number of jobs of each kind")
    for name, size in measure(parser.parse_args().jobs).items():
        print(f"{name:<22}{size:>12,.0f} bytes")


if __name__ == "__main__":
    main()
