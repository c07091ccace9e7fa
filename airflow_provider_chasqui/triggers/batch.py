"""ChasquiBatchTrigger: wait for a batch."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from airflow.triggers.base import TriggerEvent

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
    """Fires once, when all of the batch has ended, or with `fail_fast` when too much of it died."""

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
        """Cancel what is left of the batch: a person ended the task that waits for it."""
        if self.cancel_on_kill:
            async with await self.source.open() as queue:
                now_ms = time.time_ns() // 1_000_000
                await queue.client.run_flow(cancel_batch(queue.keys, self.batch_id, now_ms))
