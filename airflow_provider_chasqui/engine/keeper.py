"""Keeps what is ours: renews held entries, hears of cancellations, sweeps dead consumers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.job import Entry
from airflow_provider_chasqui.core.ops import delivery
from airflow_provider_chasqui.engine.desk import Desk
from airflow_provider_chasqui.engine.health import Health, log

_CHUNK = 500
_TURN_S = 1.0
_SWEEP_S = 60.0


class Keeper:
    """Renews entries three times before they could be claimed by another consumer.

    `hand_back` gives entries that no worker has begun back to the queue.
    """

    def __init__(self, desk: Desk, hand_back: Callable[[], int]):
        self._desk = desk
        self._hand_back = hand_back
        self._health = Health("keeping")
        self._every_s = desk.config.claim_idle_ms / 3000
        self._next_keep = time.monotonic() + self._every_s
        self._next_sweep = time.monotonic() + _SWEEP_S
        self._ended = 0

    async def run(self) -> None:
        """Until cancelled: held entries are renewed also while the workers drain."""
        while True:
            await self._sleep()
            self._desk.metrics.gauges["running"] = len(self._desk.running)
            self._let_go()
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

    async def _sleep(self) -> None:
        wake_at = min(self._next_keep, time.monotonic() + _TURN_S)
        await asyncio.sleep(max(0.01, wake_at - time.monotonic()))
        late = time.monotonic() - wake_at
        if late > max(_TURN_S, self._every_s):
            log.warning(
                "keeping: nothing ran here for %.1f s; a handler blocked the event loop (make it a "
                "plain function) or the process was paused", late,
            )  # fmt: skip

    def _let_go(self) -> None:
        """Entries read ahead, behind handlers that turned out slow, are for others to run."""
        desk = self._desk
        if desk.busy > len(desk.running) and desk.ended == self._ended:
            desk.ahead = 0
            self._hand_back()
        self._ended = desk.ended

    async def _keep(self) -> None:
        desk = self._desk
        held = list(desk.held)
        gone = 0
        for start in range(0, len(held), _CHUNK):
            ids = held[start : start + _CHUNK]
            op = delivery.keep(desk.keys, desk.group, desk.consumer, ids)
            flags = await desk.queue.drive.run(op)
            desk.metrics.counts["renewed"] += sum(flags)
            for entry_id, ours in zip(ids, flags, strict=True):
                # Settled in the meantime is not lost: then it is no longer held.
                if not ours and entry_id in desk.held and entry_id not in desk.lost:
                    gone += self._lost(entry_id)
        if gone:
            desk.metrics.counts["lost"] += gone
            log.warning(
                "keeping: the entries of %d running jobs are not ours any more, other workers took "
                "them over or they were deleted; these jobs may run twice", gone,
            )  # fmt: skip

    def _lost(self, entry_id: str) -> bool:
        self._desk.lost.add(entry_id)
        run = self._desk.running.get(entry_id)
        if run is not None:
            run.lost = True
        return run is not None

    async def _listen(self) -> None:
        desk, drive = self._desk, self._desk.queue.drive
        desk.cancels_asked = await drive.run(delivery.cancels_asked(desk.keys))
        if not desk.cancels_asked:
            return
        held = [each for each in desk.held.values() if isinstance(each, Entry)]
        for start in range(0, len(held), _CHUNK):
            chunk = held[start : start + _CHUNK]
            asked = await drive.run(
                delivery.cancel_marks(desk.keys, [each.job.id for each in chunk])
            )
            for entry, asked_ms in zip(chunk, asked, strict=True):
                if asked_ms >= entry.job.created_at_ms:
                    self._cancel(entry)

    def _cancel(self, entry: Entry) -> None:
        desk = self._desk
        run = desk.running.get(entry.id)
        if run is None:
            if entry.id in desk.held:  # else it was settled while we asked
                desk.cancelled.add(entry.id)
        elif not run.cancelled:
            run.cancelled = True
            if run.interrupt is not None:
                run.interrupt()

    async def _sweep(self) -> None:
        desk = self._desk
        silent_ms = int(desk.config.sweep_after.total_seconds() * 1000)
        op = delivery.sweep(desk.keys, desk.group, silent_ms)
        desk.metrics.counts["swept"] += await desk.queue.drive.run(op)
