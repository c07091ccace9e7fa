"""Trigger that waits for one job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from airflow.triggers.base import TriggerEvent

from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID
from airflow_provider_chasqui.triggers._base import DataclassTrigger, build_event
from airflow_provider_chasqui.triggers._waiting import QueueSource, error_as_event, wait_job


@dataclass(kw_only=True, eq=False, repr=False)
class ChasquiJobTrigger(DataclassTrigger):
    """Trigger that fires once, when a job is done or dead, or when Redis has no record of it.

    The payload has the status `done`, `dead`, `unknown` or `error`.

    :param queue_name: the name of the queue.
    :param job_id: the id of the job.
    :param events_after: an id in the events stream from before the job was added; the default
        `0-0` is the start of the stream.
    :param cancel_on_kill: cancel the job if a user ends the waiting task.
    :param chasqui_conn_id: the id of the Airflow connection.
    """

    queue_name: str
    job_id: str
    events_after: str = "0-0"
    cancel_on_kill: bool = False
    chasqui_conn_id: str = DEFAULT_CONN_ID

    @property
    def source(self) -> QueueSource:
        return QueueSource(self.chasqui_conn_id, self.queue_name)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        wait = wait_job(self.source, self.job_id, self.events_after)
        yield build_event(await error_as_event(wait), self.queue_name)

    async def on_kill(self) -> None:
        """Cancel the job, because a user ended the task that waits for it."""
        if self.cancel_on_kill:
            async with await self.source.open() as queue:
                await queue.cancel(self.job_id)
