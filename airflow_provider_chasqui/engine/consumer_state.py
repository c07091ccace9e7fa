"""State that the components of one consumer share: its entries, its capacity and its stop flag."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.commands.consumer_group import ParsedEntry
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.engine.cancellations import Cancellations
from airflow_provider_chasqui.engine.context import Run
from airflow_provider_chasqui.engine.metrics import Metrics
from airflow_provider_chasqui.queue_async import AsyncQueue

# The reader prefetches at most the entries that take this long to run and that fit this size.
_PREFETCH_SECONDS = 0.5
_MAX_PREFETCH_BYTES = 16 * 1024 * 1024


class ConsumerState:
    """Shared state of a consumer's components.

    `in_flight` maps the ids of all entries that this consumer owns and has not acked; the
    heartbeat renews their claims. `reserved` counts the entries that are running or wait in a
    buffer of an executor. It may reach `concurrency`, and `prefetch` more while handlers are fast.
    While handlers are slow nothing is prefetched, so that other consumers can run those jobs.

    `lost_claims` and `cancelled_ids` are ids of owned entries that must not be started. `paused`
    tells whether the queue is paused: the reader does not read, and no entry is started.
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
        self.cancellations = Cancellations(queue.keys)
        self._forgotten_since_read: list[Sequence[str]] = []
        self.running: dict[str, Run] = {}
        self.paused = False
        self.stopping = asyncio.Event()
        self.finished_runs = 0
        self.reserved = 0
        self.prefetch = 0
        # Whether the last entries had jobs with one attempt. They are not prefetched, because a
        # worker that is killed uses the attempt of every entry that it has read.
        self.single_attempt = config.retry.max_attempts == 1
        self._max_prefetch = 0
        self.observe_entry_size(1)
        # The reader reads again when `reserved` falls to this number.
        self._refill_threshold = config.concurrency - 1
        self._last_finished_runs = 0
        self._run_seconds = 0.0
        self._capacity_available = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def stop(self) -> None:
        """Stop the consumer. Call it from the consumer's event loop."""
        self.stopping.set()
        self._capacity_available.set()

    def reserve(self, count: int) -> None:
        """Count entries that are handed to an executor."""
        self.reserved += count
        if self.reserved:
            self._idle.clear()

    def observe_entry_size(self, entry_bytes: int) -> None:
        """Limit the prefetch by the size of current entries."""
        # Two reads: the next one is in progress while the entries of the last one run.
        self._max_prefetch = min(
            2 * self.config.read_count, _MAX_PREFETCH_BYTES // max(1, entry_bytes)
        )

    def run_started(self, run: Run) -> None:
        """Record a running job."""
        self.running[run.entry.id] = run

    def run_finished(self, seconds: float | None = None, count: int = 1) -> None:
        """Count entries that left an executor.

        :param seconds: the total run time; None if the entries did not run.
        :param count: the number of entries.
        """
        if seconds is not None:
            self.finished_runs += count
            self._run_seconds += seconds
        self.reserved = reserved = self.reserved - count
        if reserved <= self._refill_threshold:
            self._capacity_available.set()
            if not reserved:
                self._idle.set()

    async def wait_for_capacity(self) -> int:
        """Wait until entries can be read; return how many, or 0 if the consumer stops."""
        while not self.stopping.is_set():
            self._update_prefetch()
            capacity = self.config.concurrency + self.prefetch - self.reserved
            # Never return 0 here: the reader takes 0 for a stop and would call again in a loop.
            if self.reserved <= self._refill_threshold and capacity > 0:
                return capacity
            self._capacity_available.clear()
            await self._capacity_available.wait()
        return 0

    @property
    def has_free_slot(self) -> bool:
        """Whether a handler slot is free."""
        return self.reserved < self.config.concurrency

    async def wait_for_free_slot(self) -> None:
        """Wait until a handler slot is free, or the consumer stops."""
        while not self.has_free_slot and not self.stopping.is_set():
            self._capacity_available.clear()
            await self._capacity_available.wait()

    def _update_prefetch(self) -> None:
        if finished := self.finished_runs - self._last_finished_runs:
            concurrency = self.config.concurrency
            self.prefetch = 0 if self.single_attempt else self._max_prefetch
            if self._run_seconds:
                expected_runs = concurrency * finished * _PREFETCH_SECONDS / self._run_seconds
                self.prefetch = min(self.prefetch, int(expected_runs))
            self._refill_threshold = concurrency + (self.prefetch // 2 if self.prefetch else -1)
            self._last_finished_runs, self._run_seconds = self.finished_runs, 0.0

    async def wait_idle(self) -> None:
        """Wait until no entry is running or waiting in an executor."""
        await self._idle.wait()

    def read_started(self) -> None:
        """Record the start of a read. Entries acked from now on may still be in its reply."""
        self._forgotten_since_read.clear()

    def acked_since_read_started(self, entry_id: str) -> bool:
        """Return whether the entry was acked after the current read started.

        Such an entry must not run again. The race is: the read claims an entry of this consumer
        whose claim was renewed too late, an ack that was already sent deletes the entry, and the
        reply to the ack arrives before the reply to the read.
        """
        return any(entry_id in ids for ids in self._forgotten_since_read)

    def forget_entries(self, entry_ids: Sequence[str]) -> None:
        """Forget entries that this consumer no longer owns."""
        self._forgotten_since_read.append(entry_ids)
        in_flight = self.in_flight
        for entry_id in entry_ids:
            in_flight.pop(entry_id, None)
        if self.lost_claims or self.cancelled_ids:
            self.lost_claims.difference_update(entry_ids)
            self.cancelled_ids.difference_update(entry_ids)

    async def sleep_unless_stopping(self, seconds: float) -> bool:
        """Sleep until the time is over or the consumer stops; return whether it still runs."""
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds)
        except TimeoutError:
            return True
        return False
