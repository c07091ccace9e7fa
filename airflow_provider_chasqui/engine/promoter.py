"""The promoter: moves delayed jobs to the stream when they are due."""

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
    """Promotes due jobs while it is the leader, and sleeps until the next job is due.

    It also wakes every `poll_interval`, because a new job may be due earlier than the known ones.
    """

    def __init__(self, state: ConsumerState, writer: OutcomeWriter, config: PromoterConfig):
        self._state = state
        self._writer = writer
        self._config = config
        self._leader_lock = LeaderLock(
            state, "promoter", state.keys.promoter_lock, state.consumer_id, config.lock_ttl
        )

    async def run(self) -> None:
        """Promote until the consumer stops."""
        await self._leader_lock.run(self._tick)

    async def _tick(self) -> float:
        # The lock is renewed once per second and not before each promotion: promoting is atomic,
        # so two leaders for a short time move no job twice.
        if not await self._leader_lock.acquire(_LOCK_RENEW_INTERVAL_S):
            return self._config.standby_poll_interval.total_seconds()
        command = delayed.promote(self._state.keys, self._config.max_per_poll)
        result = await self._state.queue.client.execute(command)
        await self._record(result)
        if result.moved + result.dead_lettered >= self._config.max_per_poll:
            return 0.0
        poll_s = self._config.poll_interval.total_seconds()
        if not result.next_due_ms:
            return poll_s
        return min(poll_s, max(0.001, (result.next_due_ms - result.now_ms) / 1000))

    async def _record(self, promoted: PromotionResult) -> None:
        metrics = self._state.metrics
        metrics.counts["promoted"] += promoted.moved
        metrics.gauges["delayed"] = promoted.remaining
        metrics.gauges["lag_ms"] = promoted.lag_ms
        if promoted.dead_lettered:
            log.warning(
                "promoter: moved %d unreadable delayed jobs of queue %r to the dead-letter queue",
                promoted.dead_lettered,
                self._state.queue.name,
            )
        if promoted.job_ids:
            await self._state.queue.client.execute(
                delayed.delete_index(self._state.keys, promoted.job_ids)
            )
            if self._writer.events_enabled:
                self._writer.emit_encoded(
                    *[encode_waiting(job_id, promoted.now_ms) for job_id in promoted.job_ids]
                )
