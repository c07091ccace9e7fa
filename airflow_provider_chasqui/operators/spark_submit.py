"""ChasquiSparkSubmitOperator: what Spark computes becomes a batch of jobs, exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import conf

from airflow_provider_chasqui.core.errors import BatchConflict, BatchNotFound, InvalidArgument
from airflow_provider_chasqui.engine.tracing import propagate_trace
from airflow_provider_chasqui.hooks._stats import task_stats
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.links.job import LINK_XCOM_KEY, ChasquiJobLink, build_page_url
from airflow_provider_chasqui.operators import _parsing
from airflow_provider_chasqui.operators._spark_submit_base import (
    BATCH_ID_ENV_VAR,
    QUEUE_ENV_VAR,
    ChasquiSparkSubmitBase,
)
from airflow_provider_chasqui.operators._task_identity import derive_id
from airflow_provider_chasqui.retry_policies import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.queue import Queue


class ChasquiSparkSubmitOperator(ChasquiSparkSubmitBase):
    """Runs Spark and hands its rows to a queue as one batch that ChasquiBatchSensor awaits.

    Three ways: ship a `source_path`, `source_table` or `source_sql`; run the user's `application`
    first and then ship what it wrote; or, with `application_writes`, run an application that itself says
    `df.write.format("chasqui")`. Everything of SparkSubmitOperator may be given too.

    The XCom is the handle of the batch. A ship that was interrupted is carried on before anything
    is submitted; one that is complete is not submitted again.

    :param queue_name: the queue; without it, the one that the connection names.
    :param batch_id: the id of the batch; without it, it comes from dag, run, task and map index.
    :param application_writes: the application writes to the queue itself, by default under this ship id.
    :param source_format: of `source_path`, with `source_options`; parquet if not given.
    :param write_options: options of the data source, such as jobName, payload, jobId, runAt, delay,
        retry, delivery (docs/spark.md lists them).
    :param on_existing: what to do with a ship that is complete: skip, fail or overwrite.
    :param wait_for_completion: end when the jobs have ended; defers if `deferrable`.
    :param max_failed: how many jobs may die; or `max_failed_ratio`.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields, "queue_name", "batch_id", "source_path",
        "source_table", "source_sql", "source_options", "write_options", "chasqui_conn_id",
    )  # fmt: skip
    operator_extra_links = (ChasquiJobLink(),)
    ui_color = "#f3e3d3"

    def __init__(
        self,
        *,
        batch_id: str | None = None,
        application_writes: bool = False,
        source_path: str | None = None,
        source_format: str = "parquet",
        source_options: Mapping[str, str] | None = None,
        source_table: str | None = None,
        source_sql: str | None = None,
        write_options: Mapping[str, str] | None = None,
        on_existing: str = "skip",
        wait_for_completion: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        wait_timeout: timedelta | float | None = None,
        max_failed: int | None = 0,
        max_failed_ratio: float | None = None,
        fail_fast: bool = False,
        progress_interval: float = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.batch_id = batch_id
        self.application_writes = application_writes
        self.source_path = source_path
        self.source_format = source_format
        self.source_options = source_options
        self.source_table = source_table
        self.source_sql = source_sql
        self.write_options = write_options
        self.on_existing = on_existing
        self.wait_for_completion = wait_for_completion
        self.deferrable = deferrable
        self.wait_timeout = wait_timeout
        self.max_failed = max_failed
        self.max_failed_ratio = max_failed_ratio
        self.fail_fast = fail_fast
        self.progress_interval = progress_interval

    def execute(self, context: Context) -> Any:
        with fail_without_retry(), ChasquiHook(self.chasqui_conn_id) as hook:
            source = self._source_spec()
            queue = hook.queue(self.queue_name)
            ship_id = self.batch_id = self.batch_id or derive_id(context["ti"])
            link = build_page_url(self.chasqui_conn_id, queue.name, batch=ship_id)
            context["ti"].xcom_push(key=LINK_XCOM_KEY, value=link)
            # Taken before anything is sent, so that no end can fall in front of it.
            since = queue.last_event_id()
            propagate_trace(queue, batch_id=ship_id)
            if self._already_written(queue, ship_id):
                since = "0-0"
            else:
                self._submit(context, hook, queue, ship_id, source)
            handle = self._batch_handle(queue, ship_id)
            if since != "0-0":
                task_stats.incr("jobs_enqueued", handle["total"] or 0, queue.name)
            if not self.wait_for_completion:
                return handle
            if handle["batch_id"] is None:
                raise InvalidArgument("jobs with ids of their own (jobId) are no batch to wait for")
            if self.deferrable:
                self._defer(queue.name, ship_id, since)
            return self._complete(context, handle, self._wait(hook, queue.name, ship_id, since))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on after the trigger fired."""
        with ChasquiHook(self.chasqui_conn_id) as hook:
            ship_id = self.batch_id or derive_id(context["ti"])
            return self._complete(
                context, self._batch_handle(hook.queue(self.queue_name), ship_id), event
            )

    def _source_spec(self) -> dict[str, Any] | None:
        """Return what is to be shipped, or None if the application ships it itself."""
        given = {
            "path": self.source_path,
            "table": self.source_table,
            "sql": self.source_sql,
        }
        chosen: dict[str, Any] = {key: value for key, value in given.items() if value}
        if self.on_existing not in ("skip", "fail", "overwrite"):
            raise InvalidArgument(
                f"on_existing is skip, fail or overwrite; not {self.on_existing!r}"
            )
        if self.application_writes and (chosen or not self.application):
            raise InvalidArgument(
                "application_writes=True needs an application, and no source_*: it writes itself"
            )
        if not self.application_writes and len(chosen) != 1:
            raise InvalidArgument(
                "say what to ship: one of source_path, source_table and source_sql"
            )
        if self.application_writes:
            return None
        if self.source_path:
            chosen |= {"format": self.source_format, "options": dict(self.source_options or {})}
        return chosen

    def _already_written(self, queue: Queue, batch_id: str) -> bool:
        from airflow_provider_chasqui.core.commands import staged_writes

        before = queue.client.run_flow(staged_writes.get_state(queue.keys, batch_id))
        found = queue.client.run_flow(staged_writes.resume(queue.keys, batch_id))
        if before.state == "publishing":
            self.log.info("Carried on the interrupted ship %s: %s jobs", batch_id, found.total)
            return True
        if found.state == "done" and self.on_existing == "fail":
            raise BatchConflict(f"the ship {batch_id!r} is complete with {found.total} jobs")
        if found.state == "done" and self.on_existing == "skip":
            self.log.info("The ship %s is complete: %s jobs", batch_id, found.total)
            return True
        return False

    def _submit(
        self,
        context: Context,
        hook: ChasquiHook,
        queue: Queue,
        batch_id: str,
        source: dict[str, Any] | None,
    ) -> None:
        target = hook.settings.target
        if source is None:
            variables = {QUEUE_ENV_VAR: queue.name, BATCH_ID_ENV_VAR: batch_id}
            return self.submit_writing_application(context, target, variables)
        if self.application:
            self.submit_user_application(context)
        ti = context["ti"]
        wishes = {
            "source": f"airflow:{ti.dag_id}/{ti.run_id}/{ti.task_id}",
            **(self.write_options or {}),
            "queueName": queue.name,
            "batchId": batch_id,
            "onExisting": self.on_existing,
        }
        if hook.settings.dialect:
            wishes["dialect"] = hook.settings.dialect
        self.submit_spec(context, target, {"source": source, "options": wishes})

    def _batch_handle(self, queue: Queue, batch_id: str) -> dict[str, Any]:
        try:
            seen = queue.batch_progress(batch_id)
        except BatchNotFound:
            raise InvalidArgument(
                f"the application has written nothing under the ship id {batch_id!r}; leave out the "
                "option batchId there, or give the same one here"
            ) from None
        awaited = seen.parts > 0 or seen.total == 0
        return {
            "queue_name": queue.name,
            "batch_id": batch_id if awaited else None,
            "written_batch_id": batch_id,
            "total": seen.total,
            "done": seen.done,
            "dead": seen.dead,
        }

    def _defer(self, queue_name: str, batch_id: str, since: str) -> None:
        from airflow_provider_chasqui.triggers.batch import ChasquiBatchTrigger

        self.defer(
            trigger=ChasquiBatchTrigger(
                queue_name=queue_name,
                batch_id=batch_id,
                events_after=since,
                max_failed=self.max_failed,
                max_failed_ratio=self.max_failed_ratio,
                fail_fast=self.fail_fast,
                progress_interval=self.progress_interval,
                chasqui_conn_id=self.chasqui_conn_id,
            ),
            method_name="execute_complete",
            timeout=_parsing.parse_duration(self.wait_timeout, "wait_timeout"),
        )

    def _wait(self, hook: ChasquiHook, queue_name: str, batch_id: str, since: str) -> Any:
        from airflow_provider_chasqui.triggers import _waiting

        source = _waiting.QueueSource(self.chasqui_conn_id, queue_name, hook)
        wait = _waiting.wait_batch(
            source, batch_id, since, self._failure_limit, self.log.info, self.progress_interval
        )
        timeout = _parsing.parse_duration(self.wait_timeout, "wait_timeout")
        return _waiting.wait_in_process(
            wait, timeout, f"batch {batch_id} on the queue {queue_name!r}"
        )

    @property
    def _failure_limit(self) -> Any:
        from airflow_provider_chasqui.triggers._waiting import FailureLimit

        return FailureLimit(self.max_failed, self.max_failed_ratio, self.fail_fast)

    def _complete(self, context: Context, handle: dict[str, Any], event: dict[str, Any]) -> Any:
        from airflow_provider_chasqui.triggers._waiting import check_batch_event

        task_stats.record_wait("batch_wait", context, handle["queue_name"])
        counts = check_batch_event(event, handle["queue_name"], self._failure_limit)
        context["ti"].xcom_push(key="counts", value=counts)
        return handle | {key: counts[key] for key in ("done", "dead") if key in counts}
