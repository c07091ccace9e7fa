"""Keeps what is ours: renews held entries, hears of cancellations, sweeps dead consumers."""

from __future__ import annotations

import asyncio
import time

from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.ops import delivery
from airflow_provider_chasqui.engine.desk import Desk
from airflow_provider_chasqui.engine.health import Health, log

_CHUNK = 500
_LISTEN_S = 1.0
_SWEEP_S = 60.0


class Keeper:
    """Renews entries three times before they could be claimed by another consumer."""

    def __init__(self, desk: Desk):
        self._desk = desk
        self._health = Health("keeping")
        self._every_s = desk.config.claim_idle_ms / 3000
        self._next_keep = time.monotonic() + self._every_s
        self._next_sweep = time.monotonic() + _SWEEP_S

    async def run(self) -> None:
        """Until cancelled: held entries are renewed also while the workers drain."""
        while True:
            await _sleep_until(min(self._next_keep, time.monotonic() + _LISTEN_S))
            try:
                if time.monotonic() >= self._next_keep:
                    await self._keep()
                    self._next_keep = time.monotonic() + self._every_s
                await self._listen()
                if time.monotonic() >= self._next_sweep:
                    await self._sweep()
                    self._next_sweep = time.monotonic() + _SWEEP_S
                self._health.fine()
            except ChasquiError as error:
                await self._health.trouble(error)

    async def _keep(self) -> None:
        desk = self._desk
        held = list(desk.held)
        for start in range(0, len(held), _CHUNK):
            ids = held[start : start + _CHUNK]
            op = delivery.keep(desk.keys, desk.group, desk.consumer, ids)
            flags = await desk.queue.drive.run(op)
            desk.metrics.counts["renewed"] += sum(flags)
            for entry_id, ours in zip(ids, flags, strict=True):
                # Settled in the meantime is not lost: then it is no longer held.
                if not ours and entry_id in desk.held and entry_id not in desk.lost:
                    self._lost(entry_id)

    def _lost(self, entry_id: str) -> None:
        self._desk.lost.add(entry_id)
        run = self._desk.running.get(entry_id)
        if run is None:
            return
        run.context.lost = True
        self._desk.metrics.counts["lost"] += 1
        log.warning(
            "job %s: another consumer has taken its entry over; it may run twice",
            run.entry.job.id,
        )

    async def _listen(self) -> None:
        desk = self._desk
        ids = await desk.queue.drive.run(delivery.cancelled(desk.keys))
        desk.cancelled = asked = set(ids)
        heard = []
        for run in list(desk.running.values()):
            if run.entry.job.id in asked and not run.asked_to_stop:
                run.asked_to_stop = True
                run.context.cancelled = True
                heard.append(run.entry.job.id)
                if run.interrupt is not None:
                    run.interrupt()
        if heard:
            await desk.queue.drive.run(delivery.forget_cancelled(desk.keys, heard))

    async def _sweep(self) -> None:
        desk = self._desk
        silent_ms = int(desk.config.sweep_after.total_seconds() * 1000)
        op = delivery.sweep(desk.keys, desk.group, silent_ms)
        desk.metrics.counts["swept"] += await desk.queue.drive.run(op)


async def _sleep_until(moment: float) -> None:
    await asyncio.sleep(max(0.01, moment - time.monotonic()))
