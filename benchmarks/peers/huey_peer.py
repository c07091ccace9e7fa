"""Benchmark of huey on Redis, with worker threads in this process and without results."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from base import QUEUE, Peer, main
from huey import RedisHuey

THREADS = 8


class Huey(Peer):
    async def open(self) -> None:
        self.huey = RedisHuey(QUEUE, url=self.url, results=False, utc=False)
        self.handler: Callable[[Any], Any] = lambda _: None
        retries = (
            {"retries": 1, "retry_delay": 0}
            if self.retries or self.request["action"] == "fill"
            else {}
        )

        @self.huey.task(name="work", **retries)
        def work(payload: Any) -> None:
            self.handler(payload)

        self.work = work

    async def add(self, payload: Any) -> None:
        self.work(payload)

    async def add_bulk(self, payloads: list[Any]) -> None:
        for payload in payloads:
            self.work(payload)

    async def add_delayed(self, payloads: list[Any], due_ms: int) -> None:
        due = datetime.fromtimestamp(due_ms / 1000)
        for payload in payloads:
            self.work.schedule((payload,), eta=due)

    async def start(self, handler: Callable[[Any], Any]) -> None:
        self.handler = handler
        consumer = self.huey.create_consumer(
            workers=THREADS,
            periodic=False,
            initial_delay=0.001,
            max_delay=0.01,
            scheduler_interval=1,
        )
        consumer._set_signal_handlers = lambda: None
        consumer.start()

    def remaining(self, jobs: int) -> int:
        return self.huey.pending_count() + self.huey.scheduled_count()


if __name__ == "__main__":
    main(Huey)
