"""Trigger that waits for a batch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID
from airflow_provider_chasqui.triggers._base import (
    DataclassTrigger,
    build_event,
    deadline_of,
    is_killed,
    run_to_end,
)
from airflow_provider_chasqui.triggers._waiting import (
    FailureLimit,
    QueueSource,
    check_batch_event,
    error_as_event,
    seconds_until,
    wait_batch,
)


@dataclass(kw_only=True, eq=False, repr=False)
class ChasquiBatchTrigger(DataclassTrigger):
    """Trigger that fires once, when all jobs of a batch have finished.

    With `fail_fast` it also fires as soon as more jobs died than the limits allow. The payload has
    the status `finished`, `aborted` or `error`. An error is e.g. a cancelled batch or a timeout; if
    the batch exists, the payload then has its counts too.

    :param queue_name: the name of the queue.
    :param batch_id: the id of the batch.
    :param events_after: an id in the events stream from before the batch was added; the default
        `0-0` is the start of the stream.
    :param max_failed: the number of jobs that may die, 0 by default; None means no limit.
    :param max_failed_ratio: the share of jobs that may die, None by default. If both limits are
        given, the larger one applies.
    :param fail_fast: fire when a limit is exceeded instead of waiting for the remaining jobs.
    :param progress_interval: seconds between two log lines about the progress, 30 by default.
    :param must_exist: fire with an error if there is no such batch, which is the default. If False,
        wait until it exists.
    :param deadline: fire with a timeout at this time, in seconds since the epoch; None, the
        default, means never. Airflow's own timeout should be later, because its error does not
        contain the state of the batch.
    :param timeout_margin: if there is no `deadline`, fire with a timeout this many seconds before
        Airflow's own timeout; None, the default, means never.
    :param cancel_on_kill: cancel the batch if a user ends the waiting task. By default nothing is
        cancelled.
    :param owner: the owner of the batch, which the payload contains; the batch is cancelled only if
        it still has this owner.
    :param chasqui_conn_id: the id of the Airflow connection.
    """

    queue_name: str
    batch_id: str
    events_after: str = "0-0"
    max_failed: int | None = 0
    max_failed_ratio: float | None = None
    fail_fast: bool = False
    progress_interval: float = 30.0
    must_exist: bool = True
    deadline: float | None = None
    timeout_margin: float | None = None
    cancel_on_kill: bool = False
    owner: str | None = None
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
            must_exist=self.must_exist,
            timeout=seconds_until(deadline_of(self)),
        )
        yield build_event(await error_as_event(wait), self.queue_name, self.owner)

    @staticmethod
    def check_event(
        event: dict[str, Any],
        *,
        max_failed: int | None = 0,
        max_failed_ratio: float | None = None,
    ) -> dict[str, Any]:
        """Return the counts of the batch, in the method with which the task continues.

        :param event: the payload of the event.
        :param max_failed: the number of jobs that may die, 0 by default; None means no limit.
        :param max_failed_ratio: the share of jobs that may die, None by default.
        :raises BatchFailed: if more jobs died.
        :raises ChasquiError: if the wait ended with an error, such as a timeout.
        """
        limit = FailureLimit(max_failed, max_failed_ratio)
        return check_batch_event(event, event.get("queue_name"), limit)

    async def on_kill(self) -> None:
        """Cancel the batch if `cancel_on_kill` is set and a user ended the waiting task."""
        if self.cancel_on_kill:
            await run_to_end(self._cancel_if_killed())

    async def _cancel_if_killed(self) -> None:
        if await is_killed(self):
            async with await self.source.open() as queue:
                outcome = await queue.cancel_batch(self.batch_id, owner=self.owner)
            self.log.info("The task was killed; cancel of batch %s: %s", self.batch_id, outcome)
