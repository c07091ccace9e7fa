"""Benchmark of BullMQ for Python, with addBulk and removeOnComplete (no results are stored)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from base import QUEUE, Peer, main
from bullmq import Queue, Worker


class BullMQ(Peer):
    async def open(self) -> None:
        logging.disable(logging.CRITICAL)
        self.queue = Queue(QUEUE, {"connection": self.url})
        self.options = {"removeOnComplete": True, "attempts": 3}

    async def add(self, payload: Any) -> None:
        await self.queue.add("work", payload, self.options)

    async def add_bulk(self, payloads: list[Any]) -> None:
        await self._in_chunks(payloads, self.options)

    async def add_delayed(self, payloads: list[Any], due_ms: int) -> None:
        delay = max(0, due_ms - int(time.time() * 1000))
        await self._in_chunks(payloads, self.options | {"delay": delay})

    async def _in_chunks(self, payloads: list[Any], options: dict[str, Any]) -> None:
        for i in range(0, len(payloads), 500):
            jobs = [
                {"name": "work", "data": payload, "opts": options}
                for payload in payloads[i : i + 500]
            ]
            await self.queue.addBulk(jobs)

    async def start(self, handler: Callable[[Any], Any]) -> None:
        async def work(job: Any, _: str) -> None:
            await handler(job.data)

        options = {"connection": self.url, "concurrency": self.concurrency}
        self.worker = Worker(QUEUE, work, options)

    def remaining(self, jobs: int) -> int:
        keys = f"bull:{QUEUE}:"
        lists = self.redis.total(("LLEN", keys + "wait"), ("LLEN", keys + "active"))
        return lists + self.redis.total(("ZCARD", keys + "delayed"))


if __name__ == "__main__":
    main(BullMQ)
