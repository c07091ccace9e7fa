"""One leader at a time, by the wire's own lock, so that mixed fleets agree on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.ops import delivery
from airflow_provider_chasqui.engine.desk import Desk
from airflow_provider_chasqui.engine.health import Health

_RESIGN_S = 2.0


class Leader:
    """The lead of one lock, and the work of who has it."""

    def __init__(self, desk: Desk, work: str, lock: str, holder: str, life_s: int):
        self._desk = desk
        self._lock = lock
        self._holder = holder
        self._life_s = life_s
        self._asked = False
        self._led_until = 0.0
        self._health = Health(work, desk.pause)

    async def run(self, turn: Callable[[], Awaitable[float]]) -> None:
        """Take turns until the consumer stops; each returns how long to wait for the next."""
        try:
            wait = 0.0
            while await self._desk.pause(wait) if wait else not self._desk.stopping.is_set():
                try:
                    wait = await turn()
                    self._health.fine()
                except ChasquiError as error:
                    self._led_until = 0.0
                    wait = 0.001
                    await self._health.trouble(error)
        finally:
            await self._resign()

    async def lead(self, sure_for: float = 0.0) -> bool:
        """Take or keep the lead; not asked again for so many seconds after a yes."""
        if time.monotonic() < self._led_until:
            return True
        self._asked = True
        op = delivery.lead(self._lock, self._holder, self._life_s)
        leading = await self._desk.queue.drive.run(op)
        counts = self._desk.metrics.counts
        counts["lock_acquired" if leading else "lock_lost"] += 1
        if leading:
            self._led_until = time.monotonic() + min(sure_for, self._life_s / 3)
        return leading

    async def _resign(self) -> None:
        """Let the next one lead at once; if the server is away, the lock runs out by itself."""
        # Also when the last answer was no or never came: what is not ours is not given up.
        if self._asked:
            with suppress(ChasquiError, TimeoutError):
                async with asyncio.timeout(_RESIGN_S):
                    await self._desk.queue.drive.run(delivery.resign(self._lock, self._holder))
