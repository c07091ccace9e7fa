"""Benchmark of rq, with its SimpleWorker (no fork, one job at a time) and enqueue_many."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import redis
import rq_peer
from base import QUEUE, Peer, main
from rq import Queue, Retry, SimpleWorker
from rq.timeouts import TimerDeathPenalty

HANDLER: list[Callable[[Any], Any]] = []
PR_SET_PDEATHSIG = 1


def work(payload: Any) -> None:
    HANDLER[0](payload)


class QuietWorker(SimpleWorker):
    death_penalty_class = TimerDeathPenalty

    def _install_signal_handlers(self) -> None:
        """Do nothing, because the worker does not run in the main thread."""


class Rq(Peer):
    async def open(self) -> None:
        logging.disable(logging.CRITICAL)
        self.connection = redis.Redis.from_url(self.url)
        self.queue = Queue(QUEUE, connection=self.connection)
        self.options = {"result_ttl": 0, "retry": Retry(max=3)}

    async def add(self, payload: Any) -> None:
        self.queue.enqueue("rq_peer.work", payload, **self.options)

    async def add_bulk(self, payloads: list[Any]) -> None:
        self.queue.enqueue_many(
            [Queue.prepare_data("rq_peer.work", (payload,), **self.options) for payload in payloads]
        )

    async def add_delayed(self, payloads: list[Any], due_ms: int) -> None:
        due = datetime.fromtimestamp(due_ms / 1000, UTC)
        for payload in payloads:
            self.queue.enqueue_at(due, "rq_peer.work", payload, **self.options)

    async def start(self, handler: Callable[[Any], Any]) -> None:
        rq_peer.HANDLER.append(handler)
        worker = QuietWorker([self.queue], connection=redis.Redis.from_url(self.url))
        scheduled = self.request.get("due_ms") is not None
        # rq forks a scheduler, which keeps the output pipe open; it must end with this process.
        prctl = ctypes.CDLL(None).prctl
        os.register_at_fork(after_in_child=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
        threading.Thread(
            target=worker.work, kwargs={"with_scheduler": scheduled}, daemon=True
        ).start()

    def remaining(self, jobs: int) -> int:
        return self.redis.total(("LLEN", f"rq:queue:{QUEUE}"), ("ZCARD", f"rq:wip:{QUEUE}"))


if __name__ == "__main__":
    main(Rq)
