"""Benchmark of the ChasquiMQ 1.3.0 wheel. Delayed bulk adds use its native producer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import chasquimq
import msgpack
from base import FIRST_FIRE_MS, QUEUE, Peer, main, measure_repeats
from chasquimq import _native

STREAM, DELAYED, EVENTS = (
    f"{{chasqui:{QUEUE}}}:{part}" for part in ("stream", "delayed", "events")
)


class ChasquiMQ(Peer):
    async def open(self) -> None:
        self.queue = chasquimq.Queue(QUEUE, redis_url=self.url)
        self.tasks: list[Any] = []

    async def add(self, payload: Any) -> None:
        await self.queue.add("", payload)

    async def add_bulk(self, payloads: list[Any]) -> None:
        await self.queue.add_bulk([{"name": "", "data": payload} for payload in payloads])

    async def add_delayed(self, payloads: list[Any], due_ms: int) -> None:
        producer = _native.Producer(self.url, QUEUE)
        bodies = [msgpack.packb(payload) for payload in payloads]
        await producer.add_in_bulk(max(1, due_ms - int(time.time() * 1000)), bodies)

    async def start(self, handler: Callable[[Any], Any]) -> None:
        if self.kind == "plain":
            raise NotImplementedError

        async def run(job: chasquimq.Job) -> None:
            await handler(job.data)

        worker = chasquimq.Worker(
            QUEUE,
            run,
            redis_url=self.url,
            concurrency=self.concurrency,
            events_enabled=self.events,
            max_payload_bytes=2 << 20,
        )
        self.tasks.append(asyncio.ensure_future(worker.run()))

    def remaining(self, jobs: int) -> int:
        remaining = self.redis.total(("XLEN", STREAM), ("ZCARD", DELAYED))
        if self.events:
            remaining += max(0, 2 * jobs - self.redis.entries_added(EVENTS))
        return remaining

    async def replay(self) -> dict[str, Any]:
        started = time.perf_counter()
        replayed = 0
        while replayed < self.request["n"]:
            replayed += await self.queue.replay_dlq(self.request["n"])
        return {"seconds": time.perf_counter() - started}

    async def cron(self) -> dict[str, Any]:
        count, due_ms = self.request["n"], self.request["due_ms"]
        started = time.perf_counter()
        for number in range(count):
            await self.queue.upsert_repeatable_job(
                f"r{number}",
                number,
                repeat=chasquimq.RepeatPattern.every(FIRST_FIRE_MS),
                start_after_ms=due_ms - FIRST_FIRE_MS,
            )
        put = time.perf_counter() - started
        return {"put_seconds": put} | await measure_repeats(self, count, due_ms)


ChasquiMQ.extras = {"replay": ChasquiMQ.replay, "cron": ChasquiMQ.cron}

if __name__ == "__main__":
    main(ChasquiMQ)
