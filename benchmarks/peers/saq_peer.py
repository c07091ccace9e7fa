"""Benchmark of saq. It adds single jobs; bulk adds use asyncio.gather."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from base import QUEUE, Peer, main
from saq import Queue, Worker

CONCURRENT_ADDS, THREADS = 100, 8


class Saq(Peer):
    async def open(self) -> None:
        logging.disable(logging.CRITICAL)
        if self.request["action"] == "add" and self.kind == "plain":
            raise NotImplementedError  # it has only async adds
        self.queue = Queue.from_url(self.url, name=QUEUE)
        await self.queue.connect()
        self.options = {"ttl": -1, "retries": 3}

    async def add(self, payload: Any) -> None:
        await self.queue.enqueue("work", payload=payload, **self.options)

    async def add_bulk(self, payloads: list[Any]) -> None:
        for i in range(0, len(payloads), CONCURRENT_ADDS):
            await asyncio.gather(*map(self.add, payloads[i : i + CONCURRENT_ADDS]))

    async def add_delayed(self, payloads: list[Any], due_ms: int) -> None:
        self.options["scheduled"] = due_ms // 1000
        await self.add_bulk(payloads)

    async def start(self, handler: Callable[[Any], Any]) -> None:
        if self.kind == "plain":

            def work(_: Any, *, payload: Any) -> None:
                handler(payload)
        else:

            async def work(_: Any, *, payload: Any) -> None:  # type: ignore[misc]
                await handler(payload)

        worker = Worker(self.queue, [("work", work)], concurrency=self.concurrency)
        worker.pool = ThreadPoolExecutor(THREADS)
        self.task = asyncio.ensure_future(worker.start())

    def remaining(self, jobs: int) -> int:
        return self.redis.total(
            ("LLEN", f"saq:{QUEUE}:queued"),
            ("LLEN", f"saq:{QUEUE}:active"),
            ("ZCARD", f"saq:{QUEUE}:incomplete"),
        )


if __name__ == "__main__":
    main(Saq)
