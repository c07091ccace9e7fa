"""Moves delayed jobs to the stream when they are due."""

from __future__ import annotations

from airflow_provider_chasqui.core.commands import delayed
from airflow_provider_chasqui.core.commands.delayed import PromotionResult
from airflow_provider_chasqui.core.config import PromoterConfig
from airflow_provider_chasqui.core.event import encode_waiting
from airflow_provider_chasqui.engine.backoff import log
from airflow_provider_chasqui.engine.consumer_state import ConsumerState
from airflow_provider_chasqui.engine.leader import LeaderLock
from airflow_provider_chasqui.engine.outcome_writer import OutcomeWriter

_LOCK_RENEW_INTERVAL_S = 1.0


class Promoter:
    """Leads, moves what is due, and sleeps until the next job is due or a new one may be."""

    def __init__(self, state: ConsumerState, writer: OutcomeWriter, config: PromoterConfig):
        self._state = state
        self._writer = writer
        self._config = config
        lock = state.keys.promoter_lock
        self._leader_lock = LeaderLock(state, "promoting", lock, state.consumer_id, config.lock_ttl)

    async def run(self) -> None:
        await self._leader_lock.run(self._tick)

    async def _tick(self) -> float:
        # The lock is renewed once a second, not before each promotion: promoting is atomic, so a
        # moment of two leaders moves no job twice.
        if not await self._leader_lock.acquire(_LOCK_RENEW_INTERVAL_S):
            return self._config.standby_poll_interval.total_seconds()
        op = delayed.promote(self._state.keys, self._config.max_per_poll)
        done = await self._state.queue.client.execute(op)
        await self._record(done)
        if done.moved + done.dead_lettered >= self._config.max_per_poll:
            return 0.0
        poll_s = self._config.poll_interval.total_seconds()
        if not done.next_due_ms:
            return poll_s
        return min(poll_s, max(0.001, (done.next_due_ms - done.now_ms) / 1000))

    async def _record(self, promoted: PromotionResult) -> None:
        metrics = self._state.metrics
        metrics.counts["promoted"] += promoted.moved
        metrics.gauges["delayed"] = promoted.remaining
        metrics.gauges["late_ms"] = promoted.lag_ms
        if promoted.dead_lettered:
            log.warning(
                "promoting: %d members could not be read and are letters now",
                promoted.dead_lettered,
            )
        if promoted.job_ids:
            await self._state.queue.client.execute(
                delayed.delete_index(self._state.keys, promoted.job_ids)
            )
            if self._writer.events_enabled:
                told = [encode_waiting(job_id, promoted.now_ms) for job_id in promoted.job_ids]
                self._writer.emit_encoded(*told)
