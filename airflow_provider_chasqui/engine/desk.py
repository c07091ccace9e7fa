"""What the parts of one consumer share: where they work, and what they hold."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.job import Entry
from airflow_provider_chasqui.engine.context import Context
from airflow_provider_chasqui.engine.metrics import Metrics
from airflow_provider_chasqui.queue import AsyncQueue, wall_clock


class Run:
    """An entry while its handler runs."""

    __slots__ = ("asked_to_stop", "context", "entry", "interrupt", "started")

    def __init__(self, entry: Entry, context: Context):
        self.entry = entry
        self.context = context
        self.started = time.perf_counter()
        self.interrupt: Callable[[], Any] | None = None
        self.asked_to_stop = False


class Desk:
    """The common ground of a consumer's parts.

    `held` has every entry that is ours and not yet settled; the keeper renews it. `busy` counts
    those that a worker must still run; the reader leaves off when it reaches `capacity`.
    """

    def __init__(self, queue: AsyncQueue, config: ConsumerConfig):
        self.queue = queue
        self.keys = queue.keys
        self.config = config
        self.group = config.group
        self.consumer = config.consumer_id or f"c-{uuid.uuid4()}"
        self.metrics = Metrics(queue.name)
        self.clock = wall_clock
        self.held: set[str] = set()
        self.lost: set[str] = set()
        self.running: dict[str, Run] = {}
        self.cancelled: set[str] = set()
        self.stopping = asyncio.Event()
        self.capacity = 2 * config.concurrency
        self.busy = 0
        self._room = asyncio.Event()
        self._room.set()
        self._quiet = asyncio.Event()
        self._quiet.set()

    def took(self, count: int) -> None:
        self.busy += count
        if self.busy:
            self._quiet.clear()
        if self.busy >= self.capacity:
            self._room.clear()

    def started(self, run: Run) -> None:
        self.running[run.entry.id] = run

    def finished(self, entry_id: str) -> None:
        self.running.pop(entry_id, None)
        self.busy -= 1
        if not self.busy:
            self._quiet.set()
        if self.busy <= self.capacity // 2:
            self._room.set()

    async def room(self) -> int:
        """Wait until entries can be taken; return how many."""
        await self._room.wait()
        return self.capacity - self.busy

    async def quiet(self) -> None:
        """Wait until nothing is left to run."""
        await self._quiet.wait()

    def settled(self, entry_id: str) -> None:
        self.held.discard(entry_id)
        self.lost.discard(entry_id)

    async def pause(self, seconds: float) -> bool:
        """Sleep, but not past the stop; says whether to go on."""
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds)
        except TimeoutError:
            return True
        return False
