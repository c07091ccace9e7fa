"""ChasquiBatchSensor: wait until a batch is finished."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_provider_chasqui.core.durations import parse_duration
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.links.job import LINK_XCOM_KEY, ChasquiJobLink, build_page_url
from airflow_provider_chasqui.retry_policies import fail_without_retry
from airflow_provider_chasqui.sensors._base import ChasquiSensorBase

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.triggers._waiting import FailureLimit, QueueSource


class ChasquiBatchSensor(ChasquiSensorBase):
    """Sensor that waits until every job of a batch is done or dead, and logs the progress.

    Returns a mapping with `queue_name`, `batch_id`, `total`, `done`, `dead`, `lost` and `dead_ids`
    (the ids of the first 100 dead jobs).

    :param batch: the handle that ChasquiEnqueueOperator returned, or a batch id. (templated)
    :param queue_name: the queue. Required if `batch` is an id. Default: the queue of the handle.
        (templated)
    :param max_failed: how many jobs may die before the sensor fails, or None for no limit. If
        `max_failed_ratio` is given too, the larger limit applies. Default: 0.
    :param max_failed_ratio: the fraction of the jobs that may die. Default: None.
    :param fail_fast: whether to fail as soon as too many jobs died, without waiting for the others.
        Default: False.
    :param progress_interval: the time between two log lines about the progress: a timedelta, a
        number of seconds, or text such as `30s`. Default: 30 seconds.
    :param deferrable: whether to wait in the triggerer, without a worker slot. Default: the
        `default_deferrable` option of Airflow's section `[operators]`.
    :param chasqui_conn_id: the id of the Airflow connection. Default: `chasqui_default`.
        (templated)
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
        progress_interval: timedelta | float | str = 30.0,
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
        """Wait, or defer the task, and return the counts of the batch."""
        with fail_without_retry():
            self._resolve_batch()
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Finish the task after the wait.

        :param context: the task's context.
        :param event: the event of the trigger.
        :return: the counts of the batch.
        """
        self._resolve_batch()
        return super().execute_complete(context, event)

    def _resolve_batch(self) -> None:
        """Read the handle. An explicit queue name overrides that of the handle."""
        if isinstance(self.batch, dict):
            try:
                self.queue_name = self.queue_name or self.batch["queue_name"]
                self.batch = self.batch["batch_id"]
            except KeyError:
                raise InvalidArgument(
                    "batch must be a batch id or the handle that ChasquiEnqueueOperator(batch=...) "
                    f"returned, not {self.batch!r}"
                ) from None
        if not isinstance(self.batch, str) or not self.queue_name:
            raise InvalidArgument(
                "the sensor requires the handle of a batch, or a batch id and queue_name; got "
                f"batch={self.batch!r} and queue_name={self.queue_name!r}"
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
            progress_interval=self._progress_interval_s,
            chasqui_conn_id=self.chasqui_conn_id,
        )

    @property
    def _failure_limit(self) -> FailureLimit:
        from airflow_provider_chasqui.triggers._waiting import FailureLimit

        return FailureLimit(self.max_failed, self.max_failed_ratio, self.fail_fast)

    @property
    def _progress_interval_s(self) -> float:
        return parse_duration(self.progress_interval, "progress_interval").total_seconds()

    def wait(self, source: QueueSource) -> Any:
        from airflow_provider_chasqui.triggers._waiting import wait_batch

        return wait_batch(
            source,
            self.batch,
            "0-0",
            self._failure_limit,
            self.log.info,
            self._progress_interval_s,
        )

    def check_event(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        from airflow_provider_chasqui.triggers._waiting import check_batch_event

        return check_batch_event(event, self.queue_name or "", self._failure_limit)

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Return the counts of the batch if it is finished, otherwise False.

        :param context: the task's context.
        """
        from airflow_provider_chasqui.triggers._event_follower import BatchSnapshot
        from airflow_provider_chasqui.triggers._waiting import (
            MAX_DEAD_IDS,
            ProgressLogger,
            batch_event,
        )

        self.push_link(context)
        with ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(self.queue_name)
            progress = queue.batch_progress(self.batch)
            snapshot = BatchSnapshot(progress, progress.done, progress.dead)
            ProgressLogger(self.batch, self.log.info, 0).update(snapshot)
            aborted = self.fail_fast and self._failure_limit.is_exceeded(
                progress.dead, progress.total
            )
            if not progress.finished and not aborted:
                return False
            event = {"queue_name": queue.name} | batch_event(self.batch, snapshot)
            if progress.dead:
                event["dead_ids"] = queue.dead_job_ids(self.batch, limit=MAX_DEAD_IDS)
            return PokeReturnValue(True, self.finish(context, hook, event))
