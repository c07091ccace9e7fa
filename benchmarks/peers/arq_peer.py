"""Benchmark of arq. Its pool adds single jobs; bulk adds use asyncio.gather."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from arq import Retry, Worker, create_pool, func
from arq.connections import RedisSettings
from base import Peer, main

CONCURRENT_ADDS = 100
# Its polling interval; the default is half a second.
POLL_S = 0.01


class Arq(Peer):
    async def open(self) -> None:
        logging.disable(logging.CRITICAL)
        self.pool = await create_pool(RedisSettings.from_dsn(self.url))

    async def add(self, payload: Any) -> None:
        await self.pool.enqueue_job("work", payload)

    async def add_bulk(self, payloads: list[Any]) -> None:
        for i in range(0, len(payloads), CONCURRENT_ADDS):
            await asyncio.gather(*map(self.add, payloads[i : i + CONCURRENT_ADDS]))

    async def add_delayed(self, payloads: list[Any], due_ms: int) -> None:
        due = datetime.fromtimestamp(due_ms / 1000, UTC)
        for i in range(0, len(payloads), CONCURRENT_ADDS):
            adds = [
                self.pool.enqueue_job("work", payload, _defer_until=due)
                for payload in payloads[i : i + CONCURRENT_ADDS]
            ]
            await asyncio.gather(*adds)

    async def start(self, handler: Callable[[Any], Any]) -> None:
        async def work(_: Any, payload: Any) -> None:
            try:
                await handler(payload)
            except RuntimeError:
                raise Retry from None

        worker = Worker(
            [func(work, name="work", keep_result=0)],
            redis_pool=self.pool,
            max_jobs=self.concurrency,
            handle_signals=False,
            poll_delay=POLL_S,
        )
        self.task = asyncio.ensure_future(worker.async_run())

    def remaining(self, jobs: int) -> int:
        return self.redis.total(("ZCARD", "arq:queue"))


if __name__ == "__main__":
    main(Arq)
