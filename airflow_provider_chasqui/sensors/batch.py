"""ChasquiBatchSensor: wait until a batch is finished."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_provider_chasqui.core.batch import check_batch_id
from airflow_provider_chasqui.core.durations import parse_duration
from airflow_provider_chasqui.core.errors import ChasquiError, InvalidArgument
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.links.job import LINK_XCOM_KEY, ChasquiJobLink, build_page_url
from airflow_provider_chasqui.retry_policies import fail_without_retry
from airflow_provider_chasqui.sensors._base import (
    COUNTS_XCOM_KEY,
    ChasquiSensorBase,
    OnRetryOfSensor,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.queue import Queue
    from airflow_provider_chasqui.triggers._waiting import FailureLimit, QueueSource


class ChasquiBatchSensor(ChasquiSensorBase):
    """Sensor that waits until every job of a batch is done or dead, and logs the progress.

    Returns a mapping with `queue_name`, `batch_id`, `total`, `done`, `dead`, `lost` and `dead_ids`
    (the ids of the first 100 dead jobs).

    A batch that does not exist yet is awaited until the timeout of the sensor if its id is given. A
    handle of a batch that does not exist is an error. If the sensor fails, the mapping is in the
    XCom `counts`.

    :param batch: the handle that ChasquiEnqueueOperator returned, or a batch id. (templated)
    :param queue_name: the queue. Default: the queue of the handle, or the `queue_name` of the
        connection. (templated)
    :param must_exist: whether to fail with BatchNotFound if there is no such batch. Default: True
        if `batch` is a handle, False if it is an id.
    :param on_retry: what happens after too many jobs died. "reattach" (default) fails the task
        without its retries, because the jobs stay dead. With "replay" a retry of the task replays
        the dead jobs of the batch and waits again.
    :param max_failed: how many jobs may die before the sensor fails, or None for no limit: an
        integer or decimal text. If `max_failed_ratio` is given too, the larger limit applies.
        Default: 0. (templated)
    :param max_failed_ratio: the fraction of the jobs that may die: a number or decimal text.
        Default: None. (templated)
    :param fail_fast: whether to fail as soon as too many jobs died, without waiting for the others.
        Default: False.
    :param progress_interval: the time between two log lines about the progress: a timedelta, a
        number of seconds, or text such as `30s`. Default: 30 seconds. (templated)
    :param deferrable: whether to wait in the triggerer, without a worker slot. Default: the
        `default_deferrable` option of Airflow's section `[operators]`.
    :param start_from_trigger: whether the scheduler defers the task without starting it on a worker
        first. Requires `deferrable`, a `queue_name`, and a batch id and limits without templates.
        Default: False.
    :param chasqui_conn_id: the id of the Airflow connection. Default: `chasqui_default`.
        (templated)
    """

    template_fields: Sequence[str] = (
        "batch",
        "queue_name",
        "max_failed",
        "max_failed_ratio",
        "progress_interval",
        "chasqui_conn_id",
    )
    operator_extra_links = (ChasquiJobLink(),)
    stat_name = "batch_wait"

    def __init__(
        self,
        *,
        batch: Any,
        queue_name: str | None = None,
        must_exist: bool | None = None,
        on_retry: OnRetryOfSensor = "reattach",
        max_failed: int | str | None = 0,
        max_failed_ratio: float | str | None = None,
        fail_fast: bool = False,
        progress_interval: timedelta | float | str = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.batch = batch
        self.queue_name = queue_name
        self.must_exist = must_exist
        self._set_on_retry(on_retry)
        self.max_failed = max_failed
        self.max_failed_ratio = max_failed_ratio
        self.fail_fast = fail_fast
        self.progress_interval = progress_interval
        if self.start_from_trigger:
            if not isinstance(batch, str) or "{{" in batch:
                raise InvalidArgument(
                    "start_from_trigger requires a batch id without templates, because the task "
                    f"that resolves it is not started; got batch={batch!r}"
                )
            self._resolve_batch()
            self._set_start_trigger(queue_name)

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
        if self.must_exist is None:
            self.must_exist = isinstance(self.batch, dict)
        if isinstance(self.batch, dict):
            try:
                self.queue_name = self.queue_name or self.batch["queue_name"]
                self.batch = self.batch["batch_id"]
            except KeyError:
                raise InvalidArgument(
                    "batch must be a batch id or the handle that ChasquiEnqueueOperator(batch=...) "
                    f"returned, not {self.batch!r}"
                ) from None
        check_batch_id(self.batch)

    def replay_dead_jobs(self, queue: Queue) -> None:
        report = queue.replay_dead_letters(batch_id=self.batch)
        self.log.info("Replayed %d dead jobs of batch %s", report.affected, self.batch)

    def push_link(self, context: Context, queue_name: str) -> None:
        link = build_page_url(self.chasqui_conn_id, queue_name, batch=self.batch)
        context["ti"].xcom_push(key=LINK_XCOM_KEY, value=link)

    def build_trigger(self, queue_name: str, deadline: float | None) -> Any:
        from airflow_provider_chasqui.triggers.batch import ChasquiBatchTrigger

        limit = self._failure_limit
        return ChasquiBatchTrigger(
            queue_name=queue_name,
            batch_id=self.batch,
            max_failed=limit.max_failed,
            max_failed_ratio=limit.max_failed_ratio,
            fail_fast=limit.fail_fast,
            progress_interval=self._progress_interval_s,
            must_exist=bool(self.must_exist),
            deadline=deadline,
            chasqui_conn_id=self.chasqui_conn_id,
        )

    @property
    def _failure_limit(self) -> FailureLimit:
        from airflow_provider_chasqui.triggers._waiting import FailureLimit

        return FailureLimit.parse(self.max_failed, self.max_failed_ratio, self.fail_fast)

    @property
    def _progress_interval_s(self) -> float:
        return parse_duration(self.progress_interval, "progress_interval").total_seconds()

    def wait(self, source: QueueSource, timeout: float) -> Any:
        from airflow_provider_chasqui.triggers._waiting import wait_batch

        return wait_batch(
            source,
            self.batch,
            "0-0",
            self._failure_limit,
            self.log.info,
            self._progress_interval_s,
            must_exist=bool(self.must_exist),
            timeout=timeout,
        )

    def check_event(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        from airflow_provider_chasqui.triggers._waiting import batch_counts, check_batch_event

        try:
            return check_batch_event(event, self.resolve_queue_name(hook), self._failure_limit)
        except ChasquiError:
            if "total" in event:  # the batch exists
                context["ti"].xcom_push(key=COUNTS_XCOM_KEY, value=batch_counts(event))
            raise

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Return the counts of the batch if it is finished, otherwise False.

        :param context: the task's context.
        """
        from airflow_provider_chasqui.core.commands import batches
        from airflow_provider_chasqui.core.commands.wait import raise_unless_finished
        from airflow_provider_chasqui.core.waiting import (
            BatchEnd,
            BatchObservation,
            Wait,
            next_state,
        )
        from airflow_provider_chasqui.triggers import _waiting

        with ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(self.queue_name)
            self.push_link(context, queue.name)
            progress = queue.client.run_flow(batches.progress(queue.keys, self.batch))
            state = next_state(
                Wait(must_exist=bool(self.must_exist)), BatchObservation(progress), 0.0
            )
            if state.snapshot is None:
                if isinstance(state, BatchEnd):
                    raise_unless_finished(state, self.batch, queue.name)
                self.log.info("Batch %s does not exist yet", self.batch)
                return False
            snapshot = state.snapshot
            _waiting.ProgressLogger(self.batch, self.log.info, 0).update(snapshot)
            limit = self._failure_limit
            aborted = limit.fail_fast and limit.is_exceeded(snapshot.dead, snapshot.progress.total)
            if not isinstance(state, BatchEnd) and not aborted:
                return False
            event = {"queue_name": queue.name} | _waiting.batch_event(self.batch, snapshot)
            if snapshot.dead:
                event["dead_ids"] = queue.dead_job_ids(self.batch, limit=_waiting.MAX_DEAD_IDS)
            if isinstance(state, BatchEnd):
                try:
                    raise_unless_finished(state, self.batch, queue.name)
                except ChasquiError as error:
                    event |= _waiting.error_event(error)
            return PokeReturnValue(True, self.finish(context, hook, event))
