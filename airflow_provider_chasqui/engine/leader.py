"""One leader at a time, by the wire's own lock, so that mixed fleets agree on it."""

from __future__ import annotations

from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.ops import delivery
from airflow_provider_chasqui.engine.desk import Desk


class Leader:
    """The lead of one lock; asked for anew before each piece of work."""

    def __init__(self, desk: Desk, lock: str, holder: str, life_s: int):
        self._desk = desk
        self._lock = lock
        self._holder = holder
        self._life_s = life_s
        self.leading = False

    async def lead(self) -> bool:
        op = delivery.lead(self._lock, self._holder, self._life_s)
        self.leading = await self._desk.queue.drive.run(op)
        counts = self._desk.metrics.counts
        counts["lock_acquired" if self.leading else "lock_lost"] += 1
        return self.leading

    async def resign(self) -> None:
        """Let the next one lead at once; if the server is away, the lock runs out by itself."""
        if self.leading:
            self.leading = False
            try:
                await self._desk.queue.drive.run(delivery.resign(self._lock, self._holder))
            except ChasquiError:
                return
