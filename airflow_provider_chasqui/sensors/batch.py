"""ChasquiBatchSensor: wait until a batch has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.links.job import LINK_XCOM_KEY, ChasquiJobLink, build_page_url
from airflow_provider_chasqui.retry_policies import fail_without_retry
from airflow_provider_chasqui.sensors._base import ChasquiSensorBase

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.triggers._waiting import FailureLimit, QueueSource


class ChasquiBatchSensor(ChasquiSensorBase):
    """Waits until every job of a batch is done or dead; shows the progress in the log.

    Returns the counts and the ids of the first dead jobs.

    :param batch: the handle that ChasquiEnqueueOperator returned, or a batch id.
    :param queue_name: the queue, if `batch` is only an id.
    :param max_failed: how many jobs may die; or `max_failed_ratio`, as a share of all.
    :param fail_fast: do not wait for the rest once more have died than may.
    """

    template_fields: Sequence[str] = ("batch", "queue_name", "chasqui_conn_id")
    operator_extra_links = (ChasquiJobLink(),)
    stat_name = "batch_wait"

    def __init__(
        self,
        *,
        batch: Any,
        queue_name: str | None = None,
        max_failed: int | None = 0,
        max_failed_ratio: float | None = None,
        fail_fast: bool = False,
        progress_interval: float = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.batch = batch
        self.queue_name = queue_name
        self.max_failed = max_failed
        self.max_failed_ratio = max_failed_ratio
        self.fail_fast = fail_fast
        self.progress_interval = progress_interval

    def execute(self, context: Context) -> Any:
        with fail_without_retry():
            self._resolve_batch()
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        self._resolve_batch()
        return super().execute_complete(context, event)

    def _resolve_batch(self) -> None:
        """Read the handle; a queue name that was given wins over the handle's."""
        if isinstance(self.batch, dict):
            try:
                self.queue_name = self.queue_name or self.batch["queue_name"]
                self.batch = self.batch["batch_id"]
            except KeyError:
                raise InvalidArgument(
                    "batch is the handle that ChasquiEnqueueOperator(batch=...) returned, or an id"
                ) from None
        if not isinstance(self.batch, str) or not self.queue_name:
            raise InvalidArgument(
                "the sensor needs the handle of a batch, or its id and queue_name"
            )

    def push_link(self, context: Context) -> None:
        link = build_page_url(self.chasqui_conn_id, self.queue_name or "", batch=self.batch)
        context["ti"].xcom_push(key=LINK_XCOM_KEY, value=link)

    def build_trigger(self) -> Any:
        from airflow_provider_chasqui.triggers.batch import ChasquiBatchTrigger

        return ChasquiBatchTrigger(
            queue_name=self.queue_name or "",
            batch_id=self.batch,
            max_failed=self.max_failed,
            max_failed_ratio=self.max_failed_ratio,
            fail_fast=self.fail_fast,
            progress_interval=self.progress_interval,
            chasqui_conn_id=self.chasqui_conn_id,
        )

    @property
    def _failure_limit(self) -> FailureLimit:
        from airflow_provider_chasqui.triggers._waiting import FailureLimit

        return FailureLimit(self.max_failed, self.max_failed_ratio, self.fail_fast)

    def wait(self, source: QueueSource) -> Any:
        from airflow_provider_chasqui.triggers._waiting import wait_batch

        return wait_batch(
            source, self.batch, "0-0", self._failure_limit, self.log.info, self.progress_interval
        )

    def check_event(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        from airflow_provider_chasqui.triggers._waiting import check_batch_event

        return check_batch_event(event, self.queue_name or "", self._failure_limit)

    def poke(self, context: Context) -> bool | PokeReturnValue:
        from airflow_provider_chasqui.triggers._event_follower import BatchSnapshot
        from airflow_provider_chasqui.triggers._waiting import ProgressLogger, batch_event

        self.push_link(context)
        with ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(self.queue_name)
            seen = queue.batch_progress(self.batch)
            sight = BatchSnapshot(seen, seen.done, seen.dead)
            ProgressLogger(self.batch, self.log.info, 0).update(sight)
            broken = self.fail_fast and self._failure_limit.is_exceeded(seen.dead, seen.total)
            if not seen.finished and not broken:
                return False
            event = {"queue_name": queue.name} | batch_event(self.batch, sight)
            event["dead_ids"] = queue.dead_job_ids(self.batch, limit=100) if seen.dead else []
            return PokeReturnValue(True, self.finish(context, hook, event))
