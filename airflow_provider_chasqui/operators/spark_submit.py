"""ChasquiSparkSubmitOperator: what Spark computes becomes a batch of jobs, exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import conf

from airflow_provider_chasqui.core.errors import BadInput, BatchConflict, UnknownBatch
from airflow_provider_chasqui.engine.tracing import carry
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.hooks.stats import in_task
from airflow_provider_chasqui.links.job import XCOM_KEY, ChasquiJobLink, page_link
from airflow_provider_chasqui.operators import options
from airflow_provider_chasqui.operators.identity import derived_id
from airflow_provider_chasqui.operators.spark_submission import (
    QUEUE_VARIABLE,
    SHIP_VARIABLE,
    SparkSubmission,
)
from airflow_provider_chasqui.policies import no_retry_of_bad_input

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.queue import Queue


class ChasquiSparkSubmitOperator(SparkSubmission):
    """Runs Spark and hands its rows to a queue as one batch that ChasquiBatchSensor awaits.

    Three ways: ship a `source_path`, `source_table` or `source_sql`; run the user's `application`
    first and then ship what it wrote; or, with `inject`, run an application that itself says
    `df.write.format("chasqui")`. Everything of SparkSubmitOperator may be given too.

    The XCom is the handle of the batch. A ship that was interrupted is carried on before anything
    is submitted; one that is complete is not submitted again.

    :param queue_name: the queue; without it, the one that the connection names.
    :param ship_id: the id of the batch; without it, it comes from dag, run, task and map index.
    :param inject: the application writes to the queue itself, by default under this ship id.
    :param source_format: of `source_path`, with `source_options`; parquet if not given.
    :param job_options: options of the data source, such as name, payload, jobId, runAt, delay,
        retry, delivery (docs/spark.md lists them).
    :param on_existing: what to do with a ship that is complete: skip, fail or reship.
    :param wait_for_completion: end when the jobs have ended; defers if `deferrable`.
    :param max_failed: how many jobs may die; or `max_failed_ratio`.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields, "queue_name", "ship_id", "source_path",
        "source_table", "source_sql", "source_options", "job_options", "chasqui_conn_id",
    )  # fmt: skip
    operator_extra_links = (ChasquiJobLink(),)
    ui_color = "#f3e3d3"

    def __init__(
        self,
        *,
        ship_id: str | None = None,
        inject: bool = False,
        source_path: str | None = None,
        source_format: str = "parquet",
        source_options: Mapping[str, str] | None = None,
        source_table: str | None = None,
        source_sql: str | None = None,
        job_options: Mapping[str, str] | None = None,
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
        self.ship_id = ship_id
        self.inject = inject
        self.source_path = source_path
        self.source_format = source_format
        self.source_options = source_options
        self.source_table = source_table
        self.source_sql = source_sql
        self.job_options = job_options
        self.on_existing = on_existing
        self.wait_for_completion = wait_for_completion
        self.deferrable = deferrable
        self.wait_timeout = wait_timeout
        self.max_failed = max_failed
        self.max_failed_ratio = max_failed_ratio
        self.fail_fast = fail_fast
        self.progress_interval = progress_interval

    def execute(self, context: Context) -> Any:
        with no_retry_of_bad_input(), ChasquiHook(self.chasqui_conn_id) as hook:
            source = self._source()
            queue = hook.queue(self.queue_name)
            ship_id = self.ship_id = self.ship_id or derived_id(context["ti"])
            link = page_link(self.chasqui_conn_id, queue.name, batch=ship_id)
            context["ti"].xcom_push(key=XCOM_KEY, value=link)
            # Taken before anything is sent, so that no end can fall in front of it.
            since = queue.events_tail()
            carry(queue, batch_id=ship_id)
            if self._is_there(queue, ship_id):
                since = "0-0"
            else:
                self._submit(context, hook, queue, ship_id, source)
            handle = self._handle(queue, ship_id)
            if since != "0-0":
                in_task.count("jobs_enqueued", handle["total"] or 0, queue.name)
            if not self.wait_for_completion:
                return handle
            if handle["batch_id"] is None:
                raise BadInput("jobs with ids of their own (jobId) are no batch to wait for")
            if self.deferrable:
                self._defer(queue.name, ship_id, since)
            return self._finish(context, handle, self._wait(hook, queue.name, ship_id, since))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on after the trigger fired."""
        with ChasquiHook(self.chasqui_conn_id) as hook:
            ship_id = self.ship_id or derived_id(context["ti"])
            return self._finish(context, self._handle(hook.queue(self.queue_name), ship_id), event)

    def _source(self) -> dict[str, Any] | None:
        """Return what is to be shipped, or None if the application ships it itself."""
        given = {
            "path": self.source_path,
            "table": self.source_table,
            "sql": self.source_sql,
        }
        chosen: dict[str, Any] = {key: value for key, value in given.items() if value}
        if self.on_existing not in ("skip", "fail", "reship"):
            raise BadInput(f"on_existing is skip, fail or reship; not {self.on_existing!r}")
        if self.inject and (chosen or not self.application):
            raise BadInput("inject=True needs an application, and no source_*: it writes itself")
        if not self.inject and len(chosen) != 1:
            raise BadInput("say what to ship: one of source_path, source_table and source_sql")
        if self.inject:
            return None
        if self.source_path:
            chosen |= {"format": self.source_format, "options": dict(self.source_options or {})}
        return chosen

    def _is_there(self, queue: Queue, ship_id: str) -> bool:
        from airflow_provider_chasqui.core.ops import ships

        before = queue.drive.flow(ships.state(queue.keys, ship_id))
        found = queue.drive.flow(ships.recover(queue.keys, ship_id))
        if before.state == "publishing":
            self.log.info("Carried on the interrupted ship %s: %s jobs", ship_id, found.total)
            return True
        if found.state == "done" and self.on_existing == "fail":
            raise BatchConflict(f"the ship {ship_id!r} is complete with {found.total} jobs")
        if found.state == "done" and self.on_existing == "skip":
            self.log.info("The ship %s is complete: %s jobs", ship_id, found.total)
            return True
        return False

    def _submit(
        self,
        context: Context,
        hook: ChasquiHook,
        queue: Queue,
        ship_id: str,
        source: dict[str, Any] | None,
    ) -> None:
        target = hook.settings.target
        if source is None:
            variables = {QUEUE_VARIABLE: queue.name, SHIP_VARIABLE: ship_id}
            return self.submit_application(context, target, variables)
        if self.application:
            self.submit_plain(context)
        ti = context["ti"]
        wishes = {
            "source": f"airflow:{ti.dag_id}/{ti.run_id}/{ti.task_id}",
            **(self.job_options or {}),
            "queue": queue.name,
            "shipId": ship_id,
            "onExisting": self.on_existing,
        }
        if hook.settings.dialect:
            wishes["dialect"] = hook.settings.dialect
        self.submit_order(context, target, {"source": source, "options": wishes})

    def _handle(self, queue: Queue, ship_id: str) -> dict[str, Any]:
        try:
            seen = queue.batch(ship_id)
        except UnknownBatch:
            raise BadInput(
                f"the application has written nothing under the ship id {ship_id!r}; leave out the "
                "option shipId there, or give the same one here"
            ) from None
        awaited = seen.parts > 0 or seen.total == 0
        return {
            "queue_name": queue.name,
            "batch_id": ship_id if awaited else None,
            "ship_id": ship_id,
            "total": seen.total,
            "done": seen.done,
            "dead": seen.dead,
        }

    def _defer(self, queue_name: str, ship_id: str, since: str) -> None:
        from airflow_provider_chasqui.triggers.batch import ChasquiBatchTrigger

        self.defer(
            trigger=ChasquiBatchTrigger(
                queue_name=queue_name,
                batch_id=ship_id,
                since=since,
                max_failed=self.max_failed,
                max_failed_ratio=self.max_failed_ratio,
                fail_fast=self.fail_fast,
                progress_interval=self.progress_interval,
                chasqui_conn_id=self.chasqui_conn_id,
            ),
            method_name="execute_complete",
            timeout=options.span(self.wait_timeout, "wait_timeout"),
        )

    def _wait(self, hook: ChasquiHook, queue_name: str, ship_id: str, since: str) -> Any:
        from airflow_provider_chasqui.triggers import waits

        source = waits.Source(self.chasqui_conn_id, queue_name, hook)
        wait = waits.wait_batch(
            source, ship_id, since, self._limit, self.log.info, self.progress_interval
        )
        timeout = options.span(self.wait_timeout, "wait_timeout")
        return waits.here(wait, timeout, f"batch {ship_id} on the queue {queue_name!r}")

    @property
    def _limit(self) -> Any:
        from airflow_provider_chasqui.triggers.waits import Limit

        return Limit(self.max_failed, self.max_failed_ratio, self.fail_fast)

    def _finish(self, context: Context, handle: dict[str, Any], event: dict[str, Any]) -> Any:
        from airflow_provider_chasqui.triggers.waits import judge_batch

        in_task.waited("batch_wait", context, handle["queue_name"])
        counts = judge_batch(event, handle["queue_name"], self._limit)
        context["ti"].xcom_push(key="counts", value=counts)
        return handle | {key: counts[key] for key in ("done", "dead") if key in counts}
