"""How much memory of the server each thing takes: the table on docs/sizing.md.

python -m tools.sizing [--jobs 20000]
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import redis

from airflow_provider_chasqui import Consumer, ConsumerConfig, LeaseQueue, NewJob, Queue
from airflow_provider_chasqui.testing.embedded_server import EmbeddedServer

HOUR = timedelta(hours=1)
ERROR = "ConnectionError: the mail server said no (smtp.example.org:25)"
Fill = Callable[[Queue, int], None]


def payload() -> bytes:
    """Of 110 bytes as MessagePack, and never twice the same."""
    return os.urandom(108)


def waiting(queue: Queue, jobs: int) -> None:
    queue.add_many(NewJob(payload()) for _ in range(jobs))


def waiting_in_a_batch(queue: Queue, jobs: int) -> None:
    queue.add_batch((payload() for _ in range(jobs)), batch_id="b")


def delayed(queue: Queue, jobs: int) -> None:
    queue.add_many(NewJob(payload(), delay=HOUR) for _ in range(jobs))


def delayed_with_an_id(queue: Queue, jobs: int) -> None:
    queue.add_many(NewJob(payload(), id=f"order-{n:012}", delay=HOUR) for n in range(jobs))


def letters(queue: Queue, jobs: int) -> None:
    waiting(queue, jobs)
    with LeaseQueue(queue.name, queue.target) as leases:
        while found := leases.lease("sizing", 1000):
            leases.bury(*found, error=ERROR)


def unique_ids(queue: Queue, jobs: int) -> None:
    """With their jobs: what a waiting one takes is subtracted."""
    queue.add_many(NewJob(payload(), id=f"order-{n:018}", unique=HOUR) for n in range(jobs))


THINGS: dict[str, Fill] = {
    "waiting": waiting,
    "waiting, in a batch": waiting_in_a_batch,
    "delayed": delayed,
    "delayed, with an id": delayed_with_an_id,
    "letter": letters,
    "unique id": unique_ids,
}


async def run_all(name: str, url: str, jobs: int) -> None:
    """Run that many jobs, for the events that they leave."""

    async def handle(job: Any) -> None: ...

    consumer = Consumer(name, handle, ConsumerConfig(), server=url)
    running = asyncio.create_task(consumer.run())
    with Queue(name, url) as queue:
        batch = await asyncio.to_thread(queue.add_batch, range(jobs))
        await asyncio.to_thread(queue.wait_batch, batch.id)
    consumer.stop()
    await running


def measure(jobs: int) -> dict[str, float]:
    """Bytes for each thing, and of the whole events stream at its bound."""
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as admin:

        def used() -> int:
            return int(admin.info("memory")["used_memory"])

        found = {}
        for name, fill in THINGS.items():
            with Queue("sizing", server.url) as queue:
                fill(queue, 10)  # connections and scripts take some, too
                admin.delete(*admin.keys())
                before = used()
                fill(queue, jobs)
                found[name] = (used() - before) / jobs
            admin.flushall()
        found["unique id"] -= found["waiting"]
        kept = ConsumerConfig().max_events
        asyncio.run(run_all("sizing", server.url, kept * 3 // 4))
        found["events stream"] = admin.memory_usage("{chasqui:sizing}:events", samples=0) or 0
        return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.sizing", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    for name, size in measure(parser.parse_args().jobs).items():
        print(f"{name:<22}{size:>12,.0f} bytes")


if __name__ == "__main__":
    main()
