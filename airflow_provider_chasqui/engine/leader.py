"""Leader election for the promoter and the scheduler.

The locks are ChasquiMQ's own keys, so workers of both implementations elect one leader together.
"""

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
    """A leader lock with a TTL, and the loop of the component that it protects.

    :param state: the consumer's state.
    :param component: the name of the component, for log lines.
    :param lock_key: the key of the lock.
    :param owner: the value of the lock while this process is the leader.
    :param ttl: how long the lock is valid without being renewed.
    """

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
        """Call `tick` until the consumer stops, then release the lock.

        :param tick: one round of the component; returns the seconds to wait before the next.
        """
        try:
            wait_s = 0.0
            while (
                await self._state.sleep_unless_stopping(wait_s)
                if wait_s
                else not self._state.stopping.is_set()
            ):
                try:
                    wait_s = await tick()
                    self._backoff.reset()
                except ChasquiError as error:
                    self._valid_until = 0.0
                    wait_s = 0.001
                    await self._backoff.record_and_sleep(error)
        finally:
            await self._release()

    async def acquire(self, cache_for: float = 0.0) -> bool:
        """Acquire or renew the lock.

        :param cache_for: the seconds during which a success is returned again without a command; at
            most a third of the TTL.
        :return: whether this process is the leader.
        """
        if time.monotonic() < self._valid_until:
            return True
        self._acquire_attempted = True
        command = consumer_group.acquire_leader_lock(self._lock_key, self._owner, self._ttl_s)
        acquired = await self._state.queue.client.execute(command)
        self._state.metrics.counts["lock_acquired" if acquired else "lock_lost"] += 1
        if acquired:
            self._valid_until = time.monotonic() + min(cache_for, self._ttl_s / 3)
        return acquired

    async def _release(self) -> None:
        """Release the lock so that the next leader starts at once; it expires if this fails."""
        # Always sent, because the reply to the last acquire may be lost. The command does nothing
        # if another process owns the lock.
        if self._acquire_attempted:
            with suppress(ChasquiError, TimeoutError):
                async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                    await self._state.queue.client.execute(
                        consumer_group.release_leader_lock(self._lock_key, self._owner)
                    )
