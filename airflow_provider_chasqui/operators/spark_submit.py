"""ChasquiSparkSubmitOperator: rows computed by Spark become a batch of jobs, exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import conf

from airflow_provider_chasqui.assets.chasqui import set_outlet_extra
from airflow_provider_chasqui.core.durations import parse_duration, parse_optional_duration
from airflow_provider_chasqui.core.errors import (
    BatchCancelled,
    BatchConflict,
    BatchFailed,
    BatchNotFound,
    ChasquiError,
    InvalidArgument,
    WaitTimeout,
)
from airflow_provider_chasqui.core.validation import require_choice
from airflow_provider_chasqui.engine.tracing import propagate_trace
from airflow_provider_chasqui.hooks._stats import task_stats
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.links.job import LINK_XCOM_KEY, ChasquiJobLink, build_page_url
from airflow_provider_chasqui.operators._enqueue import OnClear
from airflow_provider_chasqui.operators._spark_submit_base import (
    BATCH_ID_ENV_VAR,
    QUEUE_ENV_VAR,
    ChasquiSparkSubmitBase,
)
from airflow_provider_chasqui.operators._task_identity import (
    batch_ids,
    is_event_of_other_try,
    is_retry,
    owner_of,
)
from airflow_provider_chasqui.retry_policies import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.queue import Queue

_QUICK_CHECK_TIMEOUT = timedelta(seconds=1)


class ChasquiSparkSubmitOperator(ChasquiSparkSubmitBase):
    """Runs Spark and writes its rows to a queue as one batch.

    The rows come from `source_path`, `source_table` or `source_sql`. If `application` is set too,
    it runs first and its output is the source. With `application_writes` the application itself
    calls `df.write.format("chasqui")`. The operator also takes all parameters of
    SparkSubmitOperator.

    The XCom is the handle of the batch, which ChasquiBatchSensor takes. A write that was
    interrupted during its commit is completed without Spark. A batch that exists is not
    written again.

    :param queue_name: the queue; by default the queue of the connection.
    :param chasqui_conn_id: the Airflow connection of the Redis server.
    :param batch_id: the id of the batch; by default derived from the deployment, the DAG, the run,
        the task and the map index. After a clear it ends with `~c` and a number, except a given
        `batch_id` with `application_writes`.
    :param application_writes: whether the application writes to the queue itself. Its default for
        the option batchId is this batch id.
    :param source_path: the path of the data to write.
    :param source_format: the format of `source_path`.
    :param source_options: options of the reader of `source_path`.
    :param source_table: the table to write.
    :param source_sql: the query whose rows to write.
    :param write_options: options of the data source, such as jobName, payload, jobId, runAt, delay,
        retry and delivery. docs/spark.md lists them.
    :param on_existing: the action if the batch exists: skip, fail or overwrite.
    :param on_retry: the behaviour of a retry if too many jobs died. "replay" (default) replays the
        dead jobs of the batch and waits again. With "reattach" the task fails without its retries.
    :param on_clear: the behaviour after the task was cleared. "resend" (default) cancels the
        unfinished jobs that were written before and writes the rows again. "reattach" finds the
        batch that was written before.
    :param wait_for_completion: wait until all jobs have completed or died.
    :param deferrable: wait in the triggerer instead of a worker slot.
    :param wait_timeout: the maximum time to wait, a timedelta, a number of seconds or text such as
        `1h30m`; None for no limit.
    :param max_failed: fail if more jobs than this die; None for no limit.
    :param max_failed_ratio: fail if a larger share of the jobs dies.
    :param fail_fast: fail as soon as a limit is exceeded, instead of when all jobs are finished.
    :param progress_interval: the time between progress messages in the log, as `wait_timeout`.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "queue_name",
        "batch_id",
        "source_path",
        "source_table",
        "source_sql",
        "source_options",
        "write_options",
        "chasqui_conn_id",
    )
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
        on_retry: Literal["replay", "reattach"] = "replay",
        on_clear: OnClear = "resend",
        wait_for_completion: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        wait_timeout: timedelta | float | str | None = None,
        max_failed: int | None = 0,
        max_failed_ratio: float | None = None,
        fail_fast: bool = False,
        progress_interval: timedelta | float | str = 30.0,
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
        require_choice("on_retry", on_retry, ("replay", "reattach"))
        self.on_retry = on_retry
        require_choice("on_clear", on_clear, ("resend", "reattach"))
        self.on_clear = on_clear
        self.wait_for_completion = wait_for_completion
        self.deferrable = deferrable
        self.wait_timeout = wait_timeout
        self.max_failed = max_failed
        self.max_failed_ratio = max_failed_ratio
        self.fail_fast = fail_fast
        self.progress_interval = progress_interval

    def execute(self, context: Context) -> Any:
        """Write the batch, wait for it if requested, and return its handle.

        :raises InvalidArgument: if the parameters conflict, or if the application has not written.
        :raises BatchConflict: if the batch exists and `on_existing` is fail.
        """
        with fail_without_retry(self._is_final_error), ChasquiHook(self.chasqui_conn_id) as hook:
            source = self._source_spec()
            queue = hook.queue(self.queue_name)
            batch_id = self._prepare_batch_id(context, queue)
            link = build_page_url(self.chasqui_conn_id, queue.name, batch=batch_id)
            context["ti"].xcom_push(key=LINK_XCOM_KEY, value=link)
            # Read before anything is enqueued, so that no completion event is missed.
            since = queue.last_event_id()
            propagate_trace(queue, batch_id=batch_id)
            if self._already_written(queue, batch_id):
                since = "0-0"
                self._replay_on_retry(context, queue, batch_id)
            else:
                self._submit(context, hook, queue, batch_id, source)
            handle = self._batch_handle(queue, batch_id)
            if since != "0-0":
                task_stats.incr("jobs_enqueued", handle["total"] or 0, queue.name)
            if not self.wait_for_completion:
                self._set_outlet_extra(context, handle)
                return handle
            if handle["batch_id"] is None:
                raise InvalidArgument(
                    "wait_for_completion does not support the option jobId; set it to False"
                )
            event = self._wait_or_defer(context, hook, queue.name, batch_id, since)
            return self._complete(context, handle, event)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Return the handle of the batch, or raise if too many jobs died.

        :param context: the Airflow context.
        :param event: the event of the trigger.
        """
        with fail_without_retry(self._is_final_error), ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(self.queue_name)
            if is_event_of_other_try(context["ti"], event):
                self.log.info("spark submit: ignored the event of a trigger of an earlier try")
                batch_id = self._prepare_batch_id(context, queue)
                event = self._wait_or_defer(context, hook, queue.name, batch_id, "0-0")
            batch_id = event.get("batch_id") or self._prepare_batch_id(context, queue)
            return self._complete(context, self._batch_handle(queue, batch_id), event)

    def _is_final_error(self, error: ChasquiError) -> bool:
        """Return whether a retry of the task would end with the same error."""
        is_dead = isinstance(error, BatchFailed) and self.on_retry == "reattach"
        return is_dead or isinstance(error, BatchCancelled)

    def _replay_on_retry(self, context: Context, queue: Queue, batch_id: str) -> None:
        """Replay the dead jobs of the batch in a later try of a task that waits for them."""
        if self.on_retry != "replay" or not self.wait_for_completion or not is_retry(context["ti"]):
            return
        report = queue.replay_dead_letters(batch_id=batch_id)
        if report.affected:
            self.log.info(
                "spark submit: replayed %d dead jobs of batch %s", report.affected, batch_id
            )

    def _prepare_batch_id(self, context: Context, queue: Queue) -> str:
        """Return the id of the batch. After a clear, cancel or find the batch before it."""
        if self.application_writes and self.batch_id is not None:
            return self.batch_id  # the application may contain the same id
        ids = batch_ids(context["ti"], batch_id=self.batch_id)
        for earlier in ids.earlier:
            try:
                if self.on_clear == "reattach":
                    queue.batch_progress(earlier)
                    return earlier
                if queue.cancel_batch(earlier) == "cancelled":
                    self.log.info(
                        "spark submit: the task was cleared; cancelled the unfinished jobs of "
                        "batch %s",
                        earlier,
                    )
            except BatchNotFound:
                continue
        return ids.current

    def _set_outlet_extra(self, context: Context, handle: dict[str, Any], **counts: int) -> None:
        """Add the batch to the asset events of the outlets that are queues."""
        names = ("queue_name", "batch_id", "total")
        extra = {
            "queue_name": handle["queue_name"],
            "count": handle["total"],
            "batch": handle["written_batch_id"],
            "handle": {name: handle[name] for name in names},
        }
        set_outlet_extra(self.outlets, context, extra | counts)

    def _source_spec(self) -> dict[str, Any] | None:
        """Return the source of the rows, or None if the application writes them itself."""
        sources = {
            "path": self.source_path,
            "table": self.source_table,
            "sql": self.source_sql,
        }
        source: dict[str, Any] = {key: value for key, value in sources.items() if value}
        require_choice("on_existing", self.on_existing, ("skip", "fail", "overwrite"))
        if self.application_writes and (source or not self.application):
            raise InvalidArgument(
                "application_writes=True requires application, and does not allow source_path, "
                "source_table or source_sql"
            )
        if not self.application_writes and len(source) != 1:
            raise InvalidArgument(
                "exactly one of source_path, source_table and source_sql is required, or "
                f"application_writes=True; {len(source)} are set"
            )
        if self.application_writes:
            return None
        if self.source_path:
            source |= {"format": self.source_format, "options": dict(self.source_options or {})}
        return source

    def _already_written(self, queue: Queue, batch_id: str) -> bool:
        from airflow_provider_chasqui.core.commands import staged_writes

        before = queue.client.run_flow(staged_writes.get_state(queue.keys, batch_id))
        write = queue.client.run_flow(staged_writes.resume(queue.keys, batch_id))
        if before.state == "publishing":
            self.log.info(
                "spark submit: completed the interrupted write of batch %s: %s jobs",
                batch_id,
                write.total,
            )
            return True
        if write.state == "done" and self.on_existing == "fail":
            raise BatchConflict(
                f"batch {batch_id!r} already exists with {write.total} jobs; use another batch_id, "
                "or on_existing='skip' or 'overwrite'"
            )
        if write.state == "done" and self.on_existing == "skip":
            self.log.info(
                "spark submit: batch %s already exists with %s jobs", batch_id, write.total
            )
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
        options = {
            "source": f"airflow:{ti.dag_id}/{ti.run_id}/{ti.task_id}",
            **(self.write_options or {}),
            "queueName": queue.name,
            "batchId": batch_id,
            "onExisting": self.on_existing,
        }
        if hook.settings.dialect:
            options["dialect"] = hook.settings.dialect
        self.submit_spec(context, target, {"source": source, "options": options})

    def _batch_handle(self, queue: Queue, batch_id: str) -> dict[str, Any]:
        try:
            progress = queue.batch_progress(batch_id)
        except BatchNotFound:
            raise InvalidArgument(
                f"the application has not written batch {batch_id!r}; remove its option batchId, "
                "or set the same batch_id here"
            ) from None
        can_wait = progress.parts > 0 or progress.total == 0
        return {
            "queue_name": queue.name,
            "batch_id": batch_id if can_wait else None,
            "written_batch_id": batch_id,
            "total": progress.total,
            "done": progress.done,
            "dead": progress.dead,
        }

    def _wait_or_defer(
        self, context: Context, hook: ChasquiHook, queue_name: str, batch_id: str, since: str
    ) -> dict[str, Any]:
        """Return the event of the finished batch, or defer the task."""
        # A batch may have finished while Spark was still running. If a task is resumed before
        # the scheduler learns of the end of its process, it is marked as killed.
        timeout = _QUICK_CHECK_TIMEOUT if self.deferrable else self._wait_timeout
        event = self._wait(hook, queue_name, batch_id, since, timeout)
        if self.deferrable and event.get("kind") == WaitTimeout.__name__:
            self._defer(queue_name, batch_id, since, owner_of(context["ti"]))
        return event

    def _defer(self, queue_name: str, batch_id: str, since: str, owner: str) -> None:
        from airflow_provider_chasqui.triggers import _waiting
        from airflow_provider_chasqui.triggers.batch import ChasquiBatchTrigger

        deadline, timeout = _waiting.defer_timeouts(self._wait_timeout)
        self.defer(
            trigger=ChasquiBatchTrigger(
                queue_name=queue_name,
                batch_id=batch_id,
                events_after=since,
                max_failed=self.max_failed,
                max_failed_ratio=self.max_failed_ratio,
                fail_fast=self.fail_fast,
                progress_interval=self._progress_interval_s,
                deadline=deadline,
                owner=owner,
                chasqui_conn_id=self.chasqui_conn_id,
            ),
            method_name="execute_complete",
            timeout=timeout,
        )

    def _wait(
        self,
        hook: ChasquiHook,
        queue_name: str,
        batch_id: str,
        since: str,
        timeout: timedelta | None,
    ) -> dict[str, Any]:
        from airflow_provider_chasqui.triggers import _waiting

        source = _waiting.QueueSource(self.chasqui_conn_id, queue_name, hook)
        wait = _waiting.wait_batch(
            source,
            batch_id,
            since,
            self._failure_limit,
            self.log.info,
            self._progress_interval_s,
            timeout=None if timeout is None else timeout.total_seconds(),
        )
        return _waiting.wait_in_process(wait)

    @property
    def _wait_timeout(self) -> timedelta | None:
        return parse_optional_duration(self.wait_timeout, "wait_timeout")

    @property
    def _progress_interval_s(self) -> float:
        return parse_duration(self.progress_interval, "progress_interval").total_seconds()

    @property
    def _failure_limit(self) -> Any:
        from airflow_provider_chasqui.triggers._waiting import FailureLimit

        return FailureLimit(self.max_failed, self.max_failed_ratio, self.fail_fast)

    def _complete(self, context: Context, handle: dict[str, Any], event: dict[str, Any]) -> Any:
        from airflow_provider_chasqui.triggers._waiting import batch_counts, check_batch_event

        task_stats.record_wait("batch_wait", context, handle["queue_name"])
        if "total" in event:  # also if the wait failed, for tasks that run after a failure
            context["ti"].xcom_push(key="counts", value=batch_counts(event))
        counts = check_batch_event(event, handle["queue_name"], self._failure_limit)
        done_and_dead = {name: counts[name] for name in ("done", "dead", "lost")}
        self._set_outlet_extra(context, handle, **done_and_dead)
        return handle | {key: counts[key] for key in ("done", "dead") if key in counts}
