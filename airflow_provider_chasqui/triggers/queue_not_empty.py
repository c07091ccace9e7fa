"""Trigger that fires while a queue has messages, without reading any."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_chasqui.core.commands import watchers
from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    KeyTypeMismatch,
    RedisServerError,
)
from airflow_provider_chasqui.hooks._stats import triggerer_stats
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.triggers._base import DataclassTrigger, require_seconds

if TYPE_CHECKING:
    from airflow_provider_chasqui.queue_async import AsyncQueue

_MAX_BLOCK_MS = 5000


@dataclass(kw_only=True, eq=False, repr=False)
class ChasquiQueueNotEmptyTrigger(DataclassTrigger, BaseEventTrigger):
    """Trigger that fires at the first message and then periodically while messages remain.

    The event contains no messages. The run that it starts leases some of them, see
    `leased_messages`, and messages that the run does not ack are delivered again. Therefore no
    message of a burst remains on the queue, and a paused DAG processes its messages after it is
    unpaused.

    :param queue_name: the name of the queue.
    :param lease_ttl: the maximum duration of a run in seconds, 3600 by default. All DAGs that lease
        messages of the queue must use the same value.
    :param interval: seconds between two events, 15 by default.
    :param chasqui_conn_id: the id of the Airflow connection.
    :raises InvalidArgument: if a duration is not above 0.
    """

    queue_name: str
    lease_ttl: float = 3600.0
    interval: float = 15.0
    chasqui_conn_id: str = DEFAULT_CONN_ID

    def __post_init__(self) -> None:
        BaseEventTrigger.__init__(self)
        require_seconds("lease_ttl", self.lease_ttl)
        require_seconds("interval", self.interval)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        queue = await ChasquiHook(self.chasqui_conn_id).async_queue(self.queue_name)
        try:
            while True:
                available = await self._count_available(queue)
                if not available:
                    continue
                triggerer_stats.incr("queue_not_empty_events", 1, self.queue_name)
                yield TriggerEvent({"queue_name": self.queue_name, "waiting": available})
                await asyncio.sleep(self.interval)
        finally:
            await queue.close()

    async def _count_available(self, queue: AsyncQueue) -> int:
        """Return the number of available messages; if there are none, first wait for one."""
        try:
            lease_ttl_ms = int(self.lease_ttl * 1000)
            available = await queue.client.run_flow(
                watchers.count_available(queue.keys, queue.config.group, lease_ttl_ms)
            )
            if not available:
                # The wait is bounded, because it is not woken by an expired lease or a due delay.
                block_ms = min(_MAX_BLOCK_MS, int(self.interval * 1000))
                await queue.client.execute(watchers.wait_for_entry(queue.keys, block_ms))
            return available
        except (AuthenticationFailed, KeyTypeMismatch):
            raise
        except RedisServerError as error:
            triggerer_stats.incr("trigger_errors", 1, self.queue_name)
            self.log.warning(
                "queue trigger: cannot read queue %r, retry in %g s: %s",
                self.queue_name,
                self.interval,
                error,
            )
            await asyncio.sleep(self.interval)
            return 0
