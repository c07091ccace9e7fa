"""Trigger that waits for one job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_chasqui.core.batch import parse_batch_job_id
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID
from airflow_provider_chasqui.triggers._base import (
    DataclassTrigger,
    build_event,
    deadline_of,
    is_killed,
    run_to_end,
)
from airflow_provider_chasqui.triggers._waiting import (
    QueueSource,
    check_job_event,
    error_as_event,
    seconds_until,
    wait_job,
)


@dataclass(kw_only=True, eq=False, repr=False)
class ChasquiJobTrigger(DataclassTrigger):
    """Trigger that fires once, when a job is done or dead, or when Redis has no record of it.

    The payload has the status `done`, `dead`, `unknown` or `error`.

    :param queue_name: the name of the queue.
    :param job_id: the id of the job.
    :param events_after: an id in the events stream from before the job was added; the default
        `0-0` is the start of the stream.
    :param must_exist: fire with the status `unknown` if there is no record of the job, which is the
        default. If False, wait until it exists.
    :param deadline: fire with a timeout at this time, in seconds since the epoch; None, the
        default, means never. Airflow's own timeout should be later, because its error does not
        contain the state of the job.
    :param timeout_margin: if there is no `deadline`, fire with a timeout this many seconds before
        Airflow's own timeout; None, the default, means never.
    :param progress_interval: seconds between two log lines about what delays the job, 30 by
        default.
    :param cancel_on_kill: cancel the job if a user ends the waiting task. By default nothing is
        cancelled.
    :param owner: the owner of the job's batch, which the payload contains; the batch is cancelled
        only if it still has this owner. None, the default, cancels the single job.
    :param chasqui_conn_id: the id of the Airflow connection.
    """

    queue_name: str
    job_id: str
    events_after: str = "0-0"
    must_exist: bool = True
    deadline: float | None = None
    timeout_margin: float | None = None
    progress_interval: float = 30.0
    cancel_on_kill: bool = False
    owner: str | None = None
    chasqui_conn_id: str = DEFAULT_CONN_ID

    @property
    def source(self) -> QueueSource:
        return QueueSource(self.chasqui_conn_id, self.queue_name)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        wait = wait_job(
            self.source,
            self.job_id,
            self.events_after,
            must_exist=self.must_exist,
            timeout=seconds_until(deadline_of(self)),
            log=self.log.info,
            log_interval=self.progress_interval,
        )
        yield build_event(await error_as_event(wait), self.queue_name, self.owner)

    @staticmethod
    def check_event(event: dict[str, Any]) -> None:
        """Return if the job is done, in the method with which the task continues.

        :param event: the payload of the event.
        :raises JobFailed: if the job died.
        :raises JobNotFound: if Redis has no record of the job.
        :raises ChasquiError: if the wait ended with an error, such as a timeout.
        """
        check_job_event(event, event.get("queue_name"))

    async def on_kill(self) -> None:
        """Cancel the job if `cancel_on_kill` is set and a user ended the waiting task."""
        if self.cancel_on_kill:
            await run_to_end(self._cancel_if_killed())

    async def _cancel_if_killed(self) -> None:
        if not await is_killed(self):
            return
        position = parse_batch_job_id(self.job_id)
        async with await self.source.open() as queue:
            if position is not None and self.owner is not None:
                await queue.cancel_batch(position.batch_id, owner=self.owner)
            else:
                await queue.cancel(self.job_id)
