"""ChasquiMQ 1.3.0, the wheel on PyPI; bulk delays by its native call, which its Queue lacks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import chasquimq
import msgpack
from base import FIRST_FIRE_MS, QUEUE, Peer, fires, main
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
            QUEUE, run, redis_url=self.url, concurrency=self.concurrency,
            events_enabled=self.events, max_payload_bytes=2 << 20,
        )  # fmt: skip
        self.tasks.append(asyncio.ensure_future(worker.run()))

    def left(self, jobs: int) -> int:
        left = self.redis.total(("XLEN", STREAM), ("ZCARD", DELAYED))
        if self.events:
            left += max(0, 2 * jobs - self.redis.events(EVENTS))
        return left

    async def replay(self) -> dict[str, Any]:
        began = time.perf_counter()
        moved = 0
        while moved < self.order["n"]:
            moved += await self.queue.replay_dlq(self.order["n"])
        return {"seconds": time.perf_counter() - began}

    async def cron(self) -> dict[str, Any]:
        count, due_ms = self.order["n"], self.order["due_ms"]
        began = time.perf_counter()
        for number in range(count):
            await self.queue.upsert_repeatable_job(
                f"r{number}", number, repeat=chasquimq.RepeatPattern.every(FIRST_FIRE_MS),
                start_after_ms=due_ms - FIRST_FIRE_MS,
            )  # fmt: skip
        put = time.perf_counter() - began
        return {"put_seconds": put} | await fires(self, count, due_ms)


ChasquiMQ.extras = {"replay": ChasquiMQ.replay, "cron": ChasquiMQ.cron}

if __name__ == "__main__":
    main(ChasquiMQ)
