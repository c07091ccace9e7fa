"""Trigger that waits for a batch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from airflow.triggers.base import TriggerEvent

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.commands.delayed import cancel_batch
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID
from airflow_provider_chasqui.triggers._base import DataclassTrigger, build_event
from airflow_provider_chasqui.triggers._waiting import (
    FailureLimit,
    QueueSource,
    error_as_event,
    wait_batch,
)


@dataclass(kw_only=True, eq=False, repr=False)
class ChasquiBatchTrigger(DataclassTrigger):
    """Trigger that fires once, when all jobs of a batch have finished.

    With `fail_fast` it also fires as soon as more jobs died than the limits allow. The payload has
    the status `finished`, `aborted` or `error`.

    :param queue_name: the name of the queue.
    :param batch_id: the id of the batch.
    :param events_after: an id in the events stream from before the batch was added; the default
        `0-0` is the start of the stream.
    :param max_failed: the number of jobs that may die, 0 by default; None means no limit.
    :param max_failed_ratio: the share of jobs that may die, None by default. If both limits are
        given, the larger one applies.
    :param fail_fast: fire when a limit is exceeded instead of waiting for the remaining jobs.
    :param progress_interval: seconds between two log lines about the progress, 30 by default.
    :param cancel_on_kill: cancel the unfinished jobs if a user ends the waiting task.
    :param chasqui_conn_id: the id of the Airflow connection.
    """

    queue_name: str
    batch_id: str
    events_after: str = "0-0"
    max_failed: int | None = 0
    max_failed_ratio: float | None = None
    fail_fast: bool = False
    progress_interval: float = 30.0
    cancel_on_kill: bool = False
    chasqui_conn_id: str = DEFAULT_CONN_ID

    @property
    def source(self) -> QueueSource:
        return QueueSource(self.chasqui_conn_id, self.queue_name)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        limit = FailureLimit(self.max_failed, self.max_failed_ratio, self.fail_fast)
        wait = wait_batch(
            self.source,
            self.batch_id,
            self.events_after,
            limit,
            self.log.info,
            self.progress_interval,
        )
        yield build_event(await error_as_event(wait), self.queue_name)

    async def on_kill(self) -> None:
        """Cancel the unfinished jobs, because a user ended the task that waits for them."""
        if self.cancel_on_kill:
            async with await self.source.open() as queue:
                flow = cancel_batch(queue.keys, self.batch_id, current_time_ms())
                await queue.client.run_flow(flow)
