"""ChasquiQueueDepthTrigger: wait until a queue has room."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from airflow.triggers.base import TriggerEvent

from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID
from airflow_provider_chasqui.triggers._base import DataclassTrigger, build_event
from airflow_provider_chasqui.triggers._waiting import (
    DepthLimits,
    QueueSource,
    error_as_event,
    wait_depth,
)


@dataclass(kw_only=True, eq=False, repr=False)
class ChasquiQueueDepthTrigger(DataclassTrigger):
    """Fires once, when the queue is no deeper than every limit that is given."""

    queue_name: str
    max_waiting: int | None = None
    max_running: int | None = None
    max_lag: int | None = None
    max_delayed: int | None = None
    max_dead: int | None = None
    poll_interval: float = 5.0
    chasqui_conn_id: str = DEFAULT_CONN_ID

    async def run(self) -> AsyncIterator[TriggerEvent]:
        room = DepthLimits(
            self.max_waiting, self.max_running, self.max_lag, self.max_delayed, self.max_dead
        )
        source = QueueSource(self.chasqui_conn_id, self.queue_name)
        event = await error_as_event(wait_depth(source, room, self.poll_interval, self.log.info))
        yield build_event(event, self.queue_name)
