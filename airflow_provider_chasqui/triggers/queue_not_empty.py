"""ChasquiQueueNotEmptyTrigger: rings while a queue holds messages, and takes none of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_chasqui.core.commands import watchers
from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    InvalidArgument,
    KeyTypeMismatch,
    RedisServerError,
)
from airflow_provider_chasqui.hooks._stats import triggerer_stats
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.triggers._base import DataclassTrigger

if TYPE_CHECKING:
    from airflow_provider_chasqui.queue_async import AsyncQueue

_MAX_BLOCK_MS = 5000


@dataclass(kw_only=True, eq=False, repr=False)
class ChasquiQueueNotEmptyTrigger(DataclassTrigger, BaseEventTrigger):
    """Fires an event at the first message, and again every `interval` seconds while any is left.

    The event carries no message: the run that it starts leases some (see `leased_messages`), and
    what it does not hand in comes back. So a burst strands nothing, a paused DAG loses nothing, and
    unpausing rings. `lease_ttl` is how long a run may take, in seconds; all who lease from the queue
    use the same.
    """

    queue_name: str
    lease_ttl: float = 3600.0
    interval: float = 15.0
    chasqui_conn_id: str = DEFAULT_CONN_ID

    def __post_init__(self) -> None:
        BaseEventTrigger.__init__(self)
        if self.lease_ttl <= 0 or self.interval <= 0:
            raise InvalidArgument("lease_ttl= and interval= are seconds, above 0")

    async def run(self) -> AsyncIterator[TriggerEvent]:
        queue = await ChasquiHook(self.chasqui_conn_id).async_queue(self.queue_name)
        try:
            while True:
                left = await self._count_available(queue)
                if not left:
                    continue
                triggerer_stats.incr("queue_not_empty_events", 1, self.queue_name)
                yield TriggerEvent({"queue_name": self.queue_name, "waiting": left})
                await asyncio.sleep(self.interval)
        finally:
            await queue.close()

    async def _count_available(self, queue: AsyncQueue) -> int:
        """How many messages there are; with none, come back when one may be there."""
        try:
            life_ms = int(self.lease_ttl * 1000)
            left = await queue.client.run_flow(
                watchers.count_available(queue.keys, queue.config.group, life_ms)
            )
            if not left:
                # Bounded, because neither a lease that runs out nor a delay that ends wakes it.
                block_ms = min(_MAX_BLOCK_MS, int(self.interval * 1000))
                await queue.client.execute(watchers.wait_for_entry(queue.keys, block_ms))
            return left
        except (AuthenticationFailed, KeyTypeMismatch):
            raise
        except RedisServerError as error:
            triggerer_stats.incr("trigger_errors", 1, self.queue_name)
            self.log.warning("The doorbell of %s waits: %s", self.queue_name, error)
            await asyncio.sleep(self.interval)
            return 0
