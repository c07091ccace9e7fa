"""Benchmark of dramatiq on Redis, with worker threads in this process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import dramatiq
from base import QUEUE, Peer, main
from dramatiq.brokers.redis import RedisBroker

THREADS = 8


class Dramatiq(Peer):
    async def open(self) -> None:
        logging.disable(logging.CRITICAL)
        self.broker = RedisBroker(url=self.url)
        dramatiq.set_broker(self.broker)
        self.handler: Callable[[Any], Any] = lambda _: None

        @dramatiq.actor(queue_name=QUEUE, max_retries=3, min_backoff=0, max_backoff=0)
        def work(payload: Any) -> None:
            self.handler(payload)

        self.work = work

    async def add(self, payload: Any) -> None:
        self.work.send(payload)

    async def add_bulk(self, payloads: list[Any]) -> None:
        for payload in payloads:
            self.work.send(payload)

    async def add_delayed(self, payloads: list[Any], due_ms: int) -> None:
        for payload in payloads:
            delay = max(0, due_ms - int(time.time() * 1000))
            self.work.send_with_options(args=(payload,), delay=delay)

    async def start(self, handler: Callable[[Any], Any]) -> None:
        self.handler = handler
        self.worker = dramatiq.Worker(self.broker, worker_threads=THREADS)
        self.worker.start()

    def remaining(self, jobs: int) -> int:
        return self.redis.total(
            ("HLEN", f"dramatiq:{QUEUE}.msgs"), ("HLEN", f"dramatiq:{QUEUE}.DQ.msgs")
        )


if __name__ == "__main__":
    main(Dramatiq)
