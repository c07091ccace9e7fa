"""One leader at a time, by the wire's own lock, so that mixed fleets agree on it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.ops import delivery
from airflow_provider_chasqui.engine.desk import Desk

_RESIGN_S = 2.0


class Leader:
    """The lead of one lock; asked for anew before each piece of work."""

    def __init__(self, desk: Desk, lock: str, holder: str, life_s: int):
        self._desk = desk
        self._lock = lock
        self._holder = holder
        self._life_s = life_s
        self._asked = False

    async def lead(self) -> bool:
        self._asked = True
        op = delivery.lead(self._lock, self._holder, self._life_s)
        leading = await self._desk.queue.drive.run(op)
        counts = self._desk.metrics.counts
        counts["lock_acquired" if leading else "lock_lost"] += 1
        return leading

    async def resign(self) -> None:
        """Let the next one lead at once; if the server is away, the lock runs out by itself."""
        # Also when the last answer was no or never came: what is not ours is not given up.
        if self._asked:
            with suppress(ChasquiError, TimeoutError):
                async with asyncio.timeout(_RESIGN_S):
                    await self._desk.queue.drive.run(delivery.resign(self._lock, self._holder))
