"""The heartbeat: renews claims, checks for cancellations and pauses, removes idle consumers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.job import StreamEntry
from airflow_provider_chasqui.engine.backoff import ErrorBackoff, log
from airflow_provider_chasqui.engine.consumer_state import ConsumerState

_CHUNK_SIZE = 500
_TICK_S = 1.0
_CLEANUP_INTERVAL_S = 60.0
# A consumer that waits for entries reads again after its block timeout, 5 seconds by default.
_ACTIVE_CONSUMER_MS = 10_000


class Heartbeat:
    """Renews the claims of all owned entries three times per `claim_after`.

    An entry whose claim is not renewed is recovered by another worker; see `engine/recovery.py`.

    :param state: the consumer's state.
    :param requeue_unstarted: requeues the entries that no handler has started and returns how
        many there were.
    :param on_tick: called at every tick; repairs the thread executor and logs summaries.
    :param apply_flow_control: reads what is paused and applies it.
    """

    def __init__(
        self,
        state: ConsumerState,
        requeue_unstarted: Callable[[], int],
        on_tick: Callable[[], None],
        apply_flow_control: Callable[[], Awaitable[None]],
    ):
        self._state = state
        self._on_tick = on_tick
        self._apply_flow_control = apply_flow_control
        self._requeue_unstarted = requeue_unstarted
        self._backoff = ErrorBackoff("heartbeat")
        self._renew_interval_s = state.config.claim_after.total_seconds() / 3
        self._next_renewal = time.monotonic() + self._renew_interval_s
        self._next_cleanup = time.monotonic() + _CLEANUP_INTERVAL_S
        self._last_finished_runs = 0

    async def run(self) -> None:
        """Run until cancelled. Claims are renewed during the shutdown too."""
        while True:
            await self._sleep()
            self._state.metrics.gauges["running"] = len(self._state.running)
            self._on_tick()
            try:
                await self._requeue_prefetched()
                if time.monotonic() >= self._next_renewal:
                    await self._renew_claims()
                    self._next_renewal = time.monotonic() + self._renew_interval_s
                await self._check_cancellations()
                await self._apply_flow_control()
                if time.monotonic() >= self._next_cleanup:
                    await self._remove_idle_consumers()
                    self._next_cleanup = time.monotonic() + _CLEANUP_INTERVAL_S
                self._backoff.reset()
            except ChasquiError as error:
                await self._backoff.record_and_sleep(error)

    async def _sleep(self) -> None:
        wake_at = min(self._next_renewal, time.monotonic() + _TICK_S)
        await asyncio.sleep(max(0.01, wake_at - time.monotonic()))
        delay_s = time.monotonic() - wake_at
        if delay_s > max(_TICK_S, self._renew_interval_s):
            log.warning(
                "heartbeat: %.1f s late; an async handler blocked the event loop (make it a plain "
                "function) or the process was paused",
                delay_s,
            )

    async def _requeue_prefetched(self) -> None:
        """Requeue prefetched entries if no handler has finished since the last tick.

        A requeued entry goes to the end of the stream, so this is done only if another consumer is
        active. A single worker keeps its entries, and with a concurrency of 1 the order. While the
        queue is paused, every worker keeps them.
        """
        state, finished_runs = self._state, self._last_finished_runs
        self._last_finished_runs = state.finished_runs
        if (
            state.paused
            or state.reserved <= len(state.running)
            or state.finished_runs != finished_runs
        ):
            return
        state.prefetch = 0
        consumers = await state.queue.client.execute(
            consumer_group.consumers(state.keys, state.group)
        )
        if any(
            consumer.name != state.consumer_id and consumer.idle_ms < _ACTIVE_CONSUMER_MS
            for consumer in consumers
        ):
            self._requeue_unstarted()

    async def _renew_claims(self) -> None:
        state = self._state
        entry_ids = list(state.in_flight)
        lost_runs = 0
        for start in range(0, len(entry_ids), _CHUNK_SIZE):
            chunk = entry_ids[start : start + _CHUNK_SIZE]
            command = consumer_group.renew_claims(state.keys, state.group, state.consumer_id, chunk)
            flags = await state.queue.client.execute(command)
            state.metrics.counts["claims_renewed"] += sum(flags)
            for entry_id, renewed in zip(chunk, flags, strict=True):
                # An entry that was acked in the meantime is no longer in flight, and not lost.
                if (
                    not renewed
                    and entry_id in state.in_flight
                    and entry_id not in state.lost_claims
                ):
                    lost_runs += self._mark_lost(entry_id)
        if lost_runs:
            state.metrics.counts["claims_lost"] += lost_runs
            log.warning(
                "heartbeat: lost ownership of %d running jobs (claimed by another worker, or "
                "deleted); they may run twice",
                lost_runs,
            )

    def _mark_lost(self, entry_id: str) -> bool:
        """Mark an entry as lost; return whether its handler is running."""
        self._state.lost_claims.add(entry_id)
        run = self._state.running.get(entry_id)
        if run is not None:
            run.claim_lost = True
        return run is not None

    async def _check_cancellations(self) -> None:
        state, client = self._state, self._state.queue.client
        await state.cancellations.refresh(client)
        entries = [entry for entry in state.in_flight.values() if isinstance(entry, StreamEntry)]
        for start in range(0, len(entries), _CHUNK_SIZE):
            chunk = entries[start : start + _CHUNK_SIZE]
            for entry in await state.cancellations.find(client, chunk):
                self._cancel(entry)

    def _cancel(self, entry: StreamEntry) -> None:
        state = self._state
        run = state.running.get(entry.id)
        if run is None:
            # Otherwise it was acked while the server replied.
            if entry.id in state.in_flight:
                state.cancelled_ids.add(entry.id)
        elif not run.cancelled:
            run.cancelled = True
            if run.interrupt is not None:
                run.interrupt()

    async def _remove_idle_consumers(self) -> None:
        state = self._state
        command = consumer_group.remove_idle_consumers(
            state.keys, state.group, to_ms(state.config.consumer_idle_ttl)
        )
        removed, deleted_entries = await state.queue.client.execute(command)
        state.metrics.counts["idle_consumers_removed"] += removed
        if deleted_entries:
            log.warning(
                "heartbeat: %d jobs of queue %r were deleted from the stream before they were "
                "finished, and their workers are gone; check whether a producer trims the stream "
                "(MAXLEN)",
                deleted_entries,
                state.queue.name,
            )
