"""Keeps what is ours: renews held entries, hears of cancellations, sweeps dead consumers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.job import StreamEntry
from airflow_provider_chasqui.engine.backoff import ErrorBackoff, log
from airflow_provider_chasqui.engine.consumer_state import ConsumerState

_CHUNK_SIZE = 500
_TICK_S = 1.0
_CLEANUP_INTERVAL_S = 60.0


class Heartbeat:
    """Renews entries three times before they could be claimed by another consumer.

    `hand_back` gives entries that no worker has begun back to the queue.
    """

    def __init__(self, state: ConsumerState, requeue_unstarted: Callable[[], int]):
        self._state = state
        self._requeue_unstarted = requeue_unstarted
        self._backoff = ErrorBackoff("keeping")
        self._renew_interval_s = state.config.claim_after.total_seconds() / 3
        self._next_renewal = time.monotonic() + self._renew_interval_s
        self._next_cleanup = time.monotonic() + _CLEANUP_INTERVAL_S
        self._last_finished_runs = 0

    async def run(self) -> None:
        """Until cancelled: held entries are renewed also while the workers drain."""
        while True:
            await self._sleep()
            self._state.metrics.gauges["running"] = len(self._state.running)
            self._requeue_prefetched()
            try:
                if time.monotonic() >= self._next_renewal:
                    await self._renew_claims()
                    self._next_renewal = time.monotonic() + self._renew_interval_s
                await self._check_cancellations()
                if time.monotonic() >= self._next_cleanup:
                    await self._remove_idle_consumers()
                    self._next_cleanup = time.monotonic() + _CLEANUP_INTERVAL_S
                self._backoff.reset()
            except ChasquiError as error:
                await self._backoff.record_and_sleep(error)

    async def _sleep(self) -> None:
        wake_at = min(self._next_renewal, time.monotonic() + _TICK_S)
        await asyncio.sleep(max(0.01, wake_at - time.monotonic()))
        late = time.monotonic() - wake_at
        if late > max(_TICK_S, self._renew_interval_s):
            log.warning(
                "keeping: nothing ran here for %.1f s; a handler blocked the event loop (make it a "
                "plain function) or the process was paused", late,
            )  # fmt: skip

    def _requeue_prefetched(self) -> None:
        """Entries read ahead, behind handlers that turned out slow, are for others to run."""
        desk = self._state
        if desk.reserved > len(desk.running) and desk.finished_runs == self._last_finished_runs:
            desk.prefetch = 0
            self._requeue_unstarted()
        self._last_finished_runs = desk.finished_runs

    async def _renew_claims(self) -> None:
        desk = self._state
        held = list(desk.in_flight)
        gone = 0
        for start in range(0, len(held), _CHUNK_SIZE):
            ids = held[start : start + _CHUNK_SIZE]
            op = consumer_group.renew_claims(desk.keys, desk.group, desk.consumer_id, ids)
            flags = await desk.queue.client.execute(op)
            desk.metrics.counts["renewed"] += sum(flags)
            for entry_id, ours in zip(ids, flags, strict=True):
                # Settled in the meantime is not lost: then it is no longer held.
                if not ours and entry_id in desk.in_flight and entry_id not in desk.lost_claims:
                    gone += self._mark_lost(entry_id)
        if gone:
            desk.metrics.counts["lost"] += gone
            log.warning(
                "keeping: the entries of %d running jobs are not ours any more, other workers took "
                "them over or they were deleted; these jobs may run twice", gone,
            )  # fmt: skip

    def _mark_lost(self, entry_id: str) -> bool:
        self._state.lost_claims.add(entry_id)
        run = self._state.running.get(entry_id)
        if run is not None:
            run.claim_lost = True
        return run is not None

    async def _check_cancellations(self) -> None:
        desk, drive = self._state, self._state.queue.client
        desk.has_cancel_requests = await drive.execute(
            consumer_group.any_cancel_requested(desk.keys)
        )
        if not desk.has_cancel_requests:
            return
        held = [each for each in desk.in_flight.values() if isinstance(each, StreamEntry)]
        for start in range(0, len(held), _CHUNK_SIZE):
            chunk = held[start : start + _CHUNK_SIZE]
            asked = await drive.execute(
                consumer_group.cancel_requested_at(desk.keys, [each.job.id for each in chunk])
            )
            for entry, asked_ms in zip(chunk, asked, strict=True):
                if asked_ms >= entry.job.created_at_ms:
                    self._cancel(entry)

    def _cancel(self, entry: StreamEntry) -> None:
        desk = self._state
        run = desk.running.get(entry.id)
        if run is None:
            if entry.id in desk.in_flight:  # else it was settled while we asked
                desk.cancelled_ids.add(entry.id)
        elif not run.cancelled:
            run.cancelled = True
            if run.interrupt is not None:
                run.interrupt()

    async def _remove_idle_consumers(self) -> None:
        desk = self._state
        silent_ms = int(desk.config.consumer_idle_ttl.total_seconds() * 1000)
        op = consumer_group.remove_idle_consumers(desk.keys, desk.group, silent_ms)
        desk.metrics.counts["swept"] += await desk.queue.client.execute(op)
