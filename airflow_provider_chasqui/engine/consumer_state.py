"""What the parts of one consumer share: where they work, and what they hold."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.commands.consumer_group import ParsedEntry
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.engine.context import Run
from airflow_provider_chasqui.engine.metrics import Metrics
from airflow_provider_chasqui.queue_async import AsyncQueue

# No more is read ahead than would be done in this time, and than fits into so many bytes.
_PREFETCH_SECONDS = 0.5
_MAX_PREFETCH_BYTES = 16 * 1024 * 1024


class ConsumerState:
    """The common ground of a consumer's parts.

    `held` has every entry that is ours and not yet settled; the keeper renews it. `busy` counts
    those that a worker must still run: as many as there are workers, and `ahead` more while
    handlers are quick. No job waits behind a slow handler that another consumer could run.
    """

    def __init__(self, queue: AsyncQueue, config: ConsumerConfig):
        self.queue = queue
        self.keys = queue.keys
        self.config = config
        self.group = config.group
        self.consumer_id = config.consumer_id or f"c-{uuid.uuid4()}"
        self.metrics = Metrics(queue.name)
        self.clock = current_time_ms
        self.in_flight: dict[str, ParsedEntry] = {}
        self.lost_claims: set[str] = set()
        self.cancelled_ids: set[str] = set()
        self.has_cancel_requests = False
        self._acked_since_read: list[Sequence[str]] = []
        self.running: dict[str, Run] = {}
        self.stopping = asyncio.Event()
        self.finished_runs = 0
        self.reserved = 0
        self.prefetch = 0
        self._max_prefetch = 0
        self.observe_entry_size(1)
        # With that many at hand or fewer, it is time to read again.
        self._refill_threshold = config.concurrency - 1
        self._last_finished_runs = 0
        self._run_seconds = 0.0
        self._capacity_available = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def stop(self) -> None:
        self.stopping.set()
        self._capacity_available.set()

    def reserve(self, count: int) -> None:
        self.reserved += count
        if self.reserved:
            self._idle.clear()

    def observe_entry_size(self, entry_bytes: int) -> None:
        """How large entries are at present; large ones are not hoarded."""
        # Two reads: one is under way while the other is worked on.
        self._max_prefetch = min(
            2 * self.config.read_count, _MAX_PREFETCH_BYTES // max(1, entry_bytes)
        )

    def run_started(self, run: Run) -> None:
        self.running[run.entry.id] = run

    def run_finished(self, seconds: float | None = None, count: int = 1) -> None:
        """Entries are out of the workers' hands; after runs of so many seconds, or unrun."""
        if seconds is not None:
            self.finished_runs += count
            self._run_seconds += seconds
        self.reserved = busy = self.reserved - count
        if busy <= self._refill_threshold:
            self._capacity_available.set()
            if not busy:
                self._idle.set()

    async def wait_for_capacity(self) -> int:
        """Wait until entries can be taken; return how many, 0 if the consumer stops."""
        while not self.stopping.is_set():
            self._update_prefetch()
            room = self.config.concurrency + self.prefetch - self.reserved
            # 0 means a stop to the reader, which would ask again at once, and again.
            if self.reserved <= self._refill_threshold and room > 0:
                return room
            self._capacity_available.clear()
            await self._capacity_available.wait()
        return 0

    @property
    def has_idle_worker(self) -> bool:
        """Whether a worker has nothing to do."""
        return self.reserved < self.config.concurrency

    async def wait_for_idle_worker(self) -> None:
        """Wait until a worker has nothing to do, or the consumer stops."""
        while not self.has_idle_worker and not self.stopping.is_set():
            self._capacity_available.clear()
            await self._capacity_available.wait()

    def _update_prefetch(self) -> None:
        if ended := self.finished_runs - self._last_finished_runs:
            self.prefetch, config = self._max_prefetch, self.config
            if self._run_seconds:
                soon = config.concurrency * ended * _PREFETCH_SECONDS / self._run_seconds
                self.prefetch = min(self.prefetch, int(soon))
            self._refill_threshold = config.concurrency + (
                self.prefetch // 2 if self.prefetch else -1
            )
            self._last_finished_runs, self._run_seconds = self.finished_runs, 0.0

    async def wait_idle(self) -> None:
        """Wait until nothing is left to run."""
        await self._idle.wait()

    def read_started(self) -> None:
        """A read begins: what is settled from here on may yet stand in its reply."""
        self._acked_since_read.clear()

    def acked_since_read_started(self, entry_id: str) -> bool:
        """Whether the entry was settled since the read began.

        Losing order: a read takes over an entry of ours that was idle for too long, the settlement
        that was on its way deletes it, its answer arrives first, and the job would run again.
        """
        return any(entry_id in ids for ids in self._acked_since_read)

    def mark_acked(self, entry_ids: Sequence[str]) -> None:
        self._acked_since_read.append(entry_ids)
        held = self.in_flight
        for entry_id in entry_ids:
            held.pop(entry_id, None)
        if self.lost_claims or self.cancelled_ids:
            self.lost_claims.difference_update(entry_ids)
            self.cancelled_ids.difference_update(entry_ids)

    async def sleep_unless_stopping(self, seconds: float) -> bool:
        """Sleep, but not past the stop; says whether to go on."""
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds)
        except TimeoutError:
            return True
        return False
