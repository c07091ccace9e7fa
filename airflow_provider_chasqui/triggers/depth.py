"""Trigger that waits until a queue is below its depth limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from airflow.triggers.base import TriggerEvent

from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID
from airflow_provider_chasqui.triggers._base import DataclassTrigger, build_event, deadline_of
from airflow_provider_chasqui.triggers._waiting import (
    DepthLimits,
    QueueSource,
    error_as_event,
    seconds_until,
    wait_depth,
)


@dataclass(kw_only=True, eq=False, repr=False)
class ChasquiQueueDepthTrigger(DataclassTrigger):
    """Trigger that fires once, when the queue exceeds none of the given limits.

    The payload has the status `below_limits` or `error`. A limit of None, which is the default of
    all limits, is not checked.

    :param queue_name: the name of the queue.
    :param max_waiting: maximum number of waiting jobs.
    :param max_running: maximum number of running jobs.
    :param max_lag: maximum number of jobs that no worker has read yet.
    :param max_delayed: maximum number of delayed jobs.
    :param max_dead: maximum number of dead letters.
    :param poll_interval: seconds between two reads of the depth, 5 by default.
    :param deadline: fire with a timeout at this time, in seconds since the epoch; None, the
        default, means never.
    :param timeout_margin: if there is no `deadline`, fire with a timeout this many seconds before
        Airflow's own timeout; None, the default, means never.
    :param chasqui_conn_id: the id of the Airflow connection.
    """

    queue_name: str
    max_waiting: int | None = None
    max_running: int | None = None
    max_lag: int | None = None
    max_delayed: int | None = None
    max_dead: int | None = None
    poll_interval: float = 5.0
    deadline: float | None = None
    timeout_margin: float | None = None
    chasqui_conn_id: str = DEFAULT_CONN_ID

    async def run(self) -> AsyncIterator[TriggerEvent]:
        limits = DepthLimits(
            self.max_waiting, self.max_running, self.max_lag, self.max_delayed, self.max_dead
        )
        source = QueueSource(self.chasqui_conn_id, self.queue_name)
        wait = wait_depth(
            source,
            limits,
            self.poll_interval,
            self.log.info,
            timeout=seconds_until(deadline_of(self)),
        )
        yield build_event(await error_as_event(wait), self.queue_name)
