"""Benchmark of taskiq with its Redis stream broker, and its scheduler in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from base import QUEUE, Peer, main
from taskiq import SimpleRetryMiddleware, TaskiqScheduler
from taskiq.api import run_scheduler_task
from taskiq.receiver import Receiver
from taskiq_redis import ListRedisScheduleSource, RedisStreamBroker

CONCURRENT_ADDS, THREADS = 100, 8


class Taskiq(Peer):
    async def open(self) -> None:
        logging.disable(logging.CRITICAL)
        if self.request["action"] == "add" and self.kind == "plain":
            raise NotImplementedError  # it has only async adds
        self.broker = RedisStreamBroker(self.url, queue_name=QUEUE, xread_count=self.concurrency)
        self.broker = self.broker.with_middlewares(SimpleRetryMiddleware(default_retry_count=3))
        self.handler: Callable[[Any], Any] = lambda _: None
        if self.kind == "plain":

            def work(payload: Any) -> None:
                self.handler(payload)
        else:

            async def work(payload: Any) -> None:  # type: ignore[misc]
                await self.handler(payload)

        self.broker.is_worker_process = self.request["action"] in ("consume", "retry", "latency")
        self.work = self.broker.register_task(work, "work", retry_on_error=True)
        await self.broker.startup()

    async def add(self, payload: Any) -> None:
        await self.work.kiq(payload)

    async def add_bulk(self, payloads: list[Any]) -> None:
        for i in range(0, len(payloads), CONCURRENT_ADDS):
            await asyncio.gather(*map(self.add, payloads[i : i + CONCURRENT_ADDS]))

    async def add_delayed(self, payloads: list[Any], due_ms: int) -> None:
        due = datetime.fromtimestamp(due_ms / 1000, UTC)
        source = self._schedules()
        for i in range(0, len(payloads), CONCURRENT_ADDS):
            adds = [
                self.work.schedule_by_time(source, due, payload)
                for payload in payloads[i : i + CONCURRENT_ADDS]
            ]
            await asyncio.gather(*adds)

    def _schedules(self) -> ListRedisScheduleSource:
        return ListRedisScheduleSource(self.url)

    async def start(self, handler: Callable[[Any], Any]) -> None:
        self.handler = handler
        receiver = Receiver(
            self.broker,
            ThreadPoolExecutor(THREADS),
            run_startup=False,
            max_async_tasks=self.concurrency,
        )
        self.tasks = [asyncio.ensure_future(receiver.listen(asyncio.Event()))]
        if self.request.get("due_ms"):
            scheduler = TaskiqScheduler(self.broker, [self._schedules()])
            # By default it reads the schedules once per minute, so jobs would be late.
            schedules = run_scheduler_task(scheduler, interval=timedelta(seconds=1))
            self.tasks.append(asyncio.ensure_future(schedules))

    def remaining(self, jobs: int) -> int:
        pending = self.redis.call("XPENDING", QUEUE, "taskiq")
        return int(pending[0]) if pending else 0


if __name__ == "__main__":
    main(Taskiq)
