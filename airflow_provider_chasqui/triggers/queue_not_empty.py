"""Trigger that fires while a queue has messages, without reading any."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_provider_chasqui.core.commands import watchers
from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    KeyTypeMismatch,
    RedisServerError,
)
from airflow_provider_chasqui.hooks._stats import triggerer_stats
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.operators._task_identity import deployment_name
from airflow_provider_chasqui.triggers._base import DataclassTrigger, require_seconds

if TYPE_CHECKING:
    from airflow_provider_chasqui.queue_async import AsyncQueue

_MAX_BLOCK_MS = 5000
_RENEWALS_PER_LEASE = 3


@dataclass(kw_only=True, eq=False, repr=False)
class ChasquiQueueNotEmptyTrigger(DataclassTrigger, BaseEventTrigger):
    """Trigger that fires at the first message and then periodically while messages remain.

    The event contains no messages. The run that it starts leases some of them, see
    `leased_messages`, and messages that the run does not ack are delivered again. Therefore no
    message of a burst remains on the queue, and a paused DAG processes its messages after it is
    unpaused.

    The trigger also renews the leases of runs that are queued or running, three times per
    `lease_ttl`. A run may therefore take longer than `lease_ttl`.

    :param queue_name: the name of the queue.
    :param lease_ttl: the duration of a lease in seconds, 3600 by default: how long the messages of
        a run that was deleted or marked as failed stay leased. All DAGs that lease messages of the
        queue must use the same value.
    :param interval: seconds between two events, 15 by default.
    :param chasqui_conn_id: the id of the Airflow connection.
    :param trigger_queue: the queue of the triggerer that runs this trigger. Airflow 3.3 ignores the
        queue of event triggers. Default: None.
    :raises InvalidArgument: if a duration is not above 0.
    """

    queue_name: str
    lease_ttl: float = 3600.0
    interval: float = 15.0
    chasqui_conn_id: str = DEFAULT_CONN_ID
    trigger_queue: InitVar[str | None] = None

    def __post_init__(self, trigger_queue: str | None) -> None:
        BaseEventTrigger.__init__(self)
        self.queue = trigger_queue
        require_seconds("lease_ttl", self.lease_ttl)
        require_seconds("interval", self.interval)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        queue = await ChasquiHook(self.chasqui_conn_id).async_queue(self.queue_name)
        renewer = asyncio.create_task(self._renew_leases(queue))
        try:
            while True:
                available = await self._count_available(queue)
                if not available:
                    continue
                triggerer_stats.incr("queue_not_empty_events", 1, self.queue_name)
                yield TriggerEvent({"queue_name": self.queue_name, "waiting": available})
                await asyncio.sleep(self.interval)
        finally:
            renewer.cancel()
            await asyncio.gather(renewer, return_exceptions=True)
            await queue.close()

    async def _renew_leases(self, queue: AsyncQueue) -> None:
        """Renew the leases of active runs until cancelled."""
        interval = self.lease_ttl / _RENEWALS_PER_LEASE
        ended_consumers: set[str] = set()
        while True:
            await asyncio.sleep(interval)
            try:
                ended_consumers = await self._renew_leases_once(queue, ended_consumers)
            except RedisServerError as error:
                triggerer_stats.incr("trigger_errors", 1, self.queue_name)
                self.log.warning(
                    "queue trigger: cannot renew the leases of queue %r, retry in %g s: %s",
                    self.queue_name,
                    interval,
                    error,
                )

    async def _renew_leases_once(self, queue: AsyncQueue, ended_consumers: set[str]) -> set[str]:
        """Renew leases, then read the states of the runs, because Airflow may be slow to reply.

        :param ended_consumers: the consumers whose runs had ended at the last call.
        :return: the consumers whose runs have ended now. They hold messages of runs that were
            deleted or marked as failed, and their leases are not renewed.
        """
        group = queue.config.group
        consumers = await queue.client.execute(watchers.consumers_with_leases(queue.keys, group))
        deployment = deployment_name()
        runs = {
            name: run
            for name in consumers
            if (run := watchers.parse_run_consumer_name(name, deployment))
        }
        for consumer in runs.keys() - ended_consumers:
            await queue.client.run_flow(watchers.renew_leases(queue.keys, group, consumer))
        return {consumer for consumer, run in runs.items() if not await self._is_active(*run)}

    async def _is_active(self, dag_id: str, run_id: str) -> bool:
        """Return whether a DAG run is queued or running. If Airflow cannot tell, it may be."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        try:
            active_runs = await sync_to_async(RuntimeTaskInstance.get_dr_count)(
                dag_id, run_ids=[run_id], states=["queued", "running"]
            )
        except Exception as error:
            self.log.warning(
                "queue trigger: renews the leases of run %r of DAG %r without its state: %s",
                run_id,
                dag_id,
                error,
            )
            return True
        return active_runs > 0

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
