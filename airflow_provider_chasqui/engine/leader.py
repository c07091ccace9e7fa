"""One leader at a time, by the wire's own lock, so that mixed fleets agree on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.engine.backoff import ErrorBackoff
from airflow_provider_chasqui.engine.consumer_state import ConsumerState

_RELEASE_TIMEOUT_S = 2.0
_SECOND = timedelta(seconds=1)


class LeaderLock:
    """The lead of one lock, and the work of who has it."""

    def __init__(
        self, state: ConsumerState, component: str, lock_key: str, owner: str, ttl: timedelta
    ):
        self._state = state
        self._lock_key = lock_key
        self._owner = owner
        self._ttl_s = -(-ttl // _SECOND)
        self._acquire_attempted = False
        self._valid_until = 0.0
        self._backoff = ErrorBackoff(component, state.sleep_unless_stopping)

    async def run(self, tick: Callable[[], Awaitable[float]]) -> None:
        """Take turns until the consumer stops; each returns how long to wait for the next."""
        try:
            wait = 0.0
            while (
                await self._state.sleep_unless_stopping(wait)
                if wait
                else not self._state.stopping.is_set()
            ):
                try:
                    wait = await tick()
                    self._backoff.reset()
                except ChasquiError as error:
                    self._valid_until = 0.0
                    wait = 0.001
                    await self._backoff.record_and_sleep(error)
        finally:
            await self._release()

    async def acquire(self, cache_for: float = 0.0) -> bool:
        """Take or keep the lead; not asked again for so many seconds after a yes."""
        if time.monotonic() < self._valid_until:
            return True
        self._acquire_attempted = True
        op = consumer_group.acquire_leader_lock(self._lock_key, self._owner, self._ttl_s)
        leading = await self._state.queue.client.execute(op)
        counts = self._state.metrics.counts
        counts["lock_acquired" if leading else "lock_lost"] += 1
        if leading:
            self._valid_until = time.monotonic() + min(cache_for, self._ttl_s / 3)
        return leading

    async def _release(self) -> None:
        """Let the next one lead at once; if the server is away, the lock runs out by itself."""
        # Also when the last answer was no or never came: what is not ours is not given up.
        if self._acquire_attempted:
            with suppress(ChasquiError, TimeoutError):
                async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                    await self._state.queue.client.execute(
                        consumer_group.release_leader_lock(self._lock_key, self._owner)
                    )
