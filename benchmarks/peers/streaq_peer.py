"""Benchmark of streaq, with enqueue_many and without results and logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from base import QUEUE, Peer, main
from streaq import StreaqRetry, Worker

THREADS = 8


class Streaq(Peer):
    async def open(self) -> None:
        if self.request["action"] == "add" and self.kind == "plain":
            raise NotImplementedError  # it has only async adds
        self.worker = Worker(
            redis_url=self.url,
            queue_name=QUEUE,
            concurrency=self.concurrency,
            sync_concurrency=THREADS,
            handle_signals=False,
        )
        self.handler: Callable[[Any], Any] = lambda _: None
        if self.kind == "plain":

            @self.worker.task(ttl=0, silent=True)
            def work(payload: Any) -> None:
                self._run_sync(payload)
        else:

            @self.worker.task(ttl=0, silent=True)
            async def work(payload: Any) -> None:
                await self._run_async(payload)

        self.work = work
        # `run_async` enters the worker itself, and a worker cannot be entered twice.
        if self.request["action"] not in ("consume", "retry", "latency"):
            await self.worker.__aenter__()

    def _run_sync(self, payload: Any) -> None:
        try:
            self.handler(payload)
        except RuntimeError:
            raise StreaqRetry("again", delay=0) from None

    async def _run_async(self, payload: Any) -> None:
        try:
            await self.handler(payload)
        except RuntimeError:
            raise StreaqRetry("again", delay=0) from None

    async def add(self, payload: Any) -> None:
        await self.work.enqueue(payload)

    async def add_bulk(self, payloads: list[Any]) -> None:
        await self.worker.enqueue_many([self.work.enqueue(payload) for payload in payloads])

    async def add_delayed(self, payloads: list[Any], due_ms: int) -> None:
        due = datetime.fromtimestamp(due_ms / 1000, UTC)
        tasks = [self.work.enqueue(payload).start(schedule=due) for payload in payloads]
        await self.worker.enqueue_many(tasks)

    async def start(self, handler: Callable[[Any], Any]) -> None:
        self.handler = handler
        self.task = asyncio.ensure_future(self.worker.run_async())

    def remaining(self, jobs: int) -> int:
        queues = f"streaq:{QUEUE}:queues:"
        return self.redis.total(("XLEN", queues + "normal"), ("ZCARD", queues + "delayed:normal"))


if __name__ == "__main__":
    main(Streaq)
