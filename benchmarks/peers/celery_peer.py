"""Benchmark of Celery on Redis, with a thread pool in this process and without results."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from base import QUEUE, Peer, main
from celery import Celery

THREADS = 8


class CeleryPeer(Peer):
    async def open(self) -> None:
        logging.disable(logging.CRITICAL)
        self.app = Celery(QUEUE, broker=self.url)
        self.app.conf.update(
            task_ignore_result=True,
            worker_hijack_root_logger=False,
            task_default_queue=QUEUE,
            worker_enable_remote_control=False,
            worker_send_task_events=False,
            worker_prefetch_multiplier=64,
            worker_redirect_stdouts=False,
        )
        self.handler: Callable[[Any], Any] = lambda _: None

        @self.app.task(
            name="work",
            autoretry_for=(RuntimeError,),
            default_retry_delay=0,
            retry_jitter=False,
            max_retries=3,
        )
        def work(payload: Any) -> None:
            self.handler(payload)

        self.work = work

    async def add(self, payload: Any) -> None:
        self.work.delay(payload)

    async def add_bulk(self, payloads: list[Any]) -> None:
        with self.app.producer_or_acquire() as producer:
            for payload in payloads:
                self.work.apply_async((payload,), producer=producer)

    async def add_delayed(self, payloads: list[Any], due_ms: int) -> None:
        due = datetime.fromtimestamp(due_ms / 1000, UTC)
        with self.app.producer_or_acquire() as producer:
            for payload in payloads:
                self.work.apply_async((payload,), eta=due, producer=producer)

    async def start(self, handler: Callable[[Any], Any]) -> None:
        self.handler = handler
        worker = self.app.Worker(
            pool="threads",
            concurrency=THREADS,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )
        threading.Thread(target=worker.start, daemon=True).start()

    def remaining(self, jobs: int) -> int:
        return self.redis.total(("LLEN", QUEUE), ("HLEN", "unacked"))


if __name__ == "__main__":
    main(CeleryPeer)
