"""Benchmark of this package: AsyncQueue and Consumer, or Queue and plain functions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from base import FIRST_FIRE_MS, QUEUE, Peer, main, measure_repeats

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.job import Job, NewJob
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.engine.gc_tuning import tune_gc
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue

PLAIN_THREADS = 8


class Chasqui(Peer):
    async def open(self) -> None:
        self.queue = AsyncQueue(QUEUE, self.url)
        self.blocking = Queue(QUEUE, self.url)
        self.tasks: list[Any] = []
        if self.kind == "plain":
            self.add = self._add_plain  # type: ignore[method-assign]

    async def add(self, payload: Any) -> None:
        await self.queue.add(payload)

    async def _add_plain(self, payload: Any) -> None:
        self.blocking.add(payload)

    async def add_bulk(self, payloads: list[Any]) -> None:
        if self.kind == "plain":
            self.blocking.add_many(NewJob(payload) for payload in payloads)
        else:
            await self.queue.add_many(NewJob(payload) for payload in payloads)

    async def add_delayed(self, payloads: list[Any], due_ms: int) -> None:
        run_at = datetime.fromtimestamp(due_ms / 1000, UTC)
        await self.queue.add_many([NewJob(payload, run_at=run_at) for payload in payloads])

    async def start(self, handler: Callable[[Any], Any]) -> None:
        if self.kind == "plain":

            def run(job: Job) -> None:
                handler(job.payload)
        else:

            async def run(job: Job) -> None:  # type: ignore[misc]
                await handler(job.payload)

        tune_gc()
        concurrency = PLAIN_THREADS if self.kind == "plain" else self.concurrency
        config = ConsumerConfig(
            events=self.events, concurrency=concurrency, max_payload_bytes=2 << 20
        )
        self.tasks.append(asyncio.ensure_future(Consumer(self.queue, run, config).run()))

    def remaining(self, jobs: int) -> int:
        keys = self.queue.keys
        remaining = self.redis.total(("XLEN", keys.stream), ("ZCARD", keys.delayed))
        if self.events:
            remaining += max(0, 2 * jobs - self.redis.entries_added(keys.events))
        return remaining

    async def replay(self) -> dict[str, Any]:
        started = time.perf_counter()
        report = await self.queue.replay_dead_letters()
        seconds = time.perf_counter() - started
        remaining = self.redis.total(("XLEN", self.queue.keys.dlq))
        assert remaining == 0, f"{remaining} dead letters were not replayed: {report}"
        return {"seconds": seconds}

    async def cron(self) -> dict[str, Any]:
        count, due_ms = self.request["n"], self.request["due_ms"]
        start = datetime.fromtimestamp((due_ms - FIRST_FIRE_MS) / 1000, UTC)
        started = time.perf_counter()
        for number in range(count):
            await self.queue.repeat(
                number, Every(FIRST_FIRE_MS), job_name=f"r{number}", start=start
            )
        put = time.perf_counter() - started
        return {"put_seconds": put} | await measure_repeats(self, count, due_ms)

    async def progress(self) -> dict[str, Any]:
        """Measure how long it takes to read the progress of a batch."""
        count = self.request["n"]
        started = time.perf_counter()
        batch = await self.queue.add_batch(range(count))
        put = time.perf_counter() - started
        durations = []
        for _ in range(200):
            started = time.perf_counter()
            await self.queue.batch_progress(batch.batch_id)
            durations.append(time.perf_counter() - started)
        durations.sort()
        return {
            "put_seconds": put,
            "p50_ms": durations[100] * 1000,
            "p99_ms": durations[197] * 1000,
        }

    async def waiters(self) -> dict[str, Any]:
        """Measure the cost and the wake-up time of many deferred tasks in one triggerer."""
        from airflow_provider_chasqui.triggers._wait_registry import shared_registry

        count, idle_s = self.request["n"], 5.0

        async def open_queue() -> AsyncQueue:
            return AsyncQueue(QUEUE, self.url)

        since = await self.queue.last_event_id()
        added = await self.queue.add_many([NewJob(n) for n in range(count)])
        async with shared_registry(self.url, QUEUE, open_queue) as registry:
            waits = [
                asyncio.ensure_future(registry.wait_for_job(job.job_id, since)) for job in added
            ]
            await asyncio.sleep(1.0)
            calls, cpu = self._calls(), time.process_time()
            await asyncio.sleep(idle_s)
            cost = {
                "idle_commands_s": (self._calls() - calls) / idle_s,
                "idle_cpu": (time.process_time() - cpu) / idle_s,
                "connections": self._clients(),
            }
            started = time.perf_counter()
            await self.start(_nothing)
            await asyncio.gather(*waits)
            return cost | {"seconds": time.perf_counter() - started}

    def _calls(self) -> int:
        stats = self.redis.call("INFO", "stats").decode()
        return int(stats.partition("total_commands_processed:")[2].split()[0])

    def _clients(self) -> int:
        return len(self.redis.call("CLIENT", "LIST").splitlines())


async def _nothing(_: Any) -> None:
    await asyncio.sleep(0)


Chasqui.extras = {
    "replay": Chasqui.replay,
    "cron": Chasqui.cron,
    "progress": Chasqui.progress,
    "waiters": Chasqui.waiters,
}

if __name__ == "__main__":
    main(Chasqui)
