"""Moves delayed jobs to the stream when they are due."""

from __future__ import annotations

from airflow_provider_chasqui.core.config import PromoterConfig
from airflow_provider_chasqui.core.event import packed_waiting
from airflow_provider_chasqui.core.ops import delayed
from airflow_provider_chasqui.core.ops.delayed import Promoted
from airflow_provider_chasqui.engine.desk import Desk
from airflow_provider_chasqui.engine.health import log
from airflow_provider_chasqui.engine.leader import Leader
from airflow_provider_chasqui.engine.settler import Settler

_RENEW_S = 1.0


class Promoter:
    """Leads, moves what is due, and sleeps until the next job is due or a new one may be."""

    def __init__(self, desk: Desk, settler: Settler, config: PromoterConfig):
        self._desk = desk
        self._settler = settler
        self._config = config
        lock = desk.keys.promoter_lock
        self._leader = Leader(desk, "promoting", lock, desk.consumer, config.lock_life_s)

    async def run(self) -> None:
        await self._leader.run(self._turn)

    async def _turn(self) -> float:
        # The lock is renewed once a second, not before each promotion: promoting is atomic, so a
        # moment of two leaders moves no job twice.
        if not await self._leader.lead(_RENEW_S):
            return self._config.standby_ms / 1000
        op = delayed.promote(self._desk.keys, self._config.at_most)
        done = await self._desk.queue.drive.run(op)
        await self._tell(done)
        if done.moved + done.buried >= self._config.at_most:
            return 0.0
        poll_s = self._config.poll_ms / 1000
        if not done.next_due_ms:
            return poll_s
        return min(poll_s, max(0.001, (done.next_due_ms - done.now_ms) / 1000))

    async def _tell(self, done: Promoted) -> None:
        metrics = self._desk.metrics
        metrics.counts["promoted"] += done.moved
        metrics.gauges["delayed"] = done.left
        metrics.gauges["late_ms"] = done.late_ms
        if done.buried:
            log.warning("promoting: %d members could not be read and are letters now", done.buried)
        if done.job_ids:
            await self._desk.queue.drive.run(delayed.forget_index(self._desk.keys, done.job_ids))
            if self._settler.events_on:
                told = [packed_waiting(job_id, done.now_ms) for job_id in done.job_ids]
                self._settler.tell_packed(*told)
