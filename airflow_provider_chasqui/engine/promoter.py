"""Moves delayed jobs to the stream when they are due."""

from __future__ import annotations

import time

from airflow_provider_chasqui.core.config import PromoterConfig
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.event import packed_waiting
from airflow_provider_chasqui.core.ops import delayed
from airflow_provider_chasqui.core.ops.delayed import Promoted
from airflow_provider_chasqui.engine.desk import Desk
from airflow_provider_chasqui.engine.health import Health, log
from airflow_provider_chasqui.engine.leader import Leader
from airflow_provider_chasqui.engine.settler import Settler

_RENEW_S = 1.0


class Promoter:
    """Leads, moves what is due, and sleeps until the next job is due or a new one may be."""

    def __init__(self, desk: Desk, settler: Settler, config: PromoterConfig):
        self._desk = desk
        self._settler = settler
        self._config = config
        self._leader = Leader(desk, desk.keys.promoter_lock, desk.consumer, config.lock_life_s)
        self._led_until = 0.0
        self._health = Health("promoting", desk.pause)

    async def run(self) -> None:
        try:
            wait = 0.0
            while await self._desk.pause(wait) if wait else not self._desk.stopping.is_set():
                try:
                    wait = await self._turn()
                    self._health.fine()
                except ChasquiError as error:
                    self._led_until = 0.0
                    wait = 0.001
                    await self._health.trouble(error)
        finally:
            await self._leader.resign()

    async def _turn(self) -> float:
        # The lock is renewed once a second, not before each promotion: promoting is atomic, so a
        # moment of two leaders moves no job twice.
        if time.monotonic() >= self._led_until:
            if not await self._leader.lead():
                return self._config.standby_ms / 1000
            self._led_until = time.monotonic() + min(_RENEW_S, self._config.lock_life_s / 3)
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
                for job_id in done.job_ids:
                    self._settler.tell_packed(packed_waiting(job_id, done.now_ms))
