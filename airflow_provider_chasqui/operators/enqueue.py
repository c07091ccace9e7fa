"""ChasquiEnqueueOperator: enqueue a job, several jobs or a batch, and optionally wait for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseOperator

from airflow_provider_chasqui.assets.chasqui import QueueLineage, set_outlet_extra
from airflow_provider_chasqui.core.durations import parse_duration
from airflow_provider_chasqui.core.errors import (
    BatchCancelled,
    BatchFailed,
    ChasquiError,
    InvalidArgument,
    JobFailed,
    WaitTimeout,
)
from airflow_provider_chasqui.core.json_values import to_jsonable
from airflow_provider_chasqui.core.retry import parse_retry_policy
from airflow_provider_chasqui.core.validation import require_choice
from airflow_provider_chasqui.hooks._stats import task_stats
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.links.job import LINK_XCOM_KEY, ChasquiJobLink, build_page_url
from airflow_provider_chasqui.operators import _parsing
from airflow_provider_chasqui.operators._enqueue import (
    EnqueueHandle,
    EnqueueOnceResult,
    EnqueueRequest,
    OnChange,
    OnClear,
    OnRetry,
    cancel_enqueued,
    enqueue_once,
)
from airflow_provider_chasqui.operators._payloads import PayloadList
from airflow_provider_chasqui.operators._sources import SourceArgument
from airflow_provider_chasqui.operators._task_identity import (
    batch_ids,
    is_event_of_other_try,
    owner_of,
)
from airflow_provider_chasqui.retry_policies import fail_without_retry
from airflow_provider_chasqui.sources import RowOptions

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.triggers._waiting import FailureLimit

PayloadKind = Literal["payload", "payloads", "batch", "source"]
PAYLOAD_ARGUMENTS: tuple[PayloadKind, ...] = ("payload", "payloads", "batch", "source")
NOT_GIVEN: Any = object()
_MAX_RESULTS = 10_000
_MAX_LISTED = 100
_COUNT_NAMES = ("queue_name", "batch_id", "total", "done", "dead", "lost", "dead_ids")
_QUICK_CHECK_TIMEOUT = timedelta(seconds=1)


class ChasquiEnqueueOperator(QueueLineage, BaseOperator):
    """Operator that enqueues jobs exactly once, over all tries of the task, and may wait for them.

    Pass exactly one of `payload` (one job; the XCom is its id), `payloads` (several jobs, whose
    results are returned in order), `batch` (many jobs) and `source` (rows of files, a database or a
    table). The XCom of the latter three is a handle for ChasquiBatchSensor: a mapping with
    `queue_name`, `batch_id` and `total`.

    A single `payload` is templated. `payloads`, `batch` and `source` may contain the output of
    upstream tasks, but their elements are not rendered and Airflow does not store them.

    Durations are a timedelta, a number of seconds, or text such as `30s` or `1h30m`.

    :param queue_name: the queue. Default: the `queue_name` of the connection. (templated)
    :param payload: the payload of one job: any JSON value. (templated)
    :param payloads: the payloads of several jobs: an iterable, or the output of a task.
    :param batch: the payloads of a batch: an iterable, or the output of a task.
    :param source: the rows of a batch, read as a stream, one job per row. A text or an
        ObjectStoragePath is the path, pattern or directory of files; FileSource and SqlSource have
        more options. A function is called in the task, with the context variables that it names as
        parameters, and returns or yields rows or tables. An iterable of rows, an Arrow, pandas or
        Polars table, the asset of a file, and the output of a task are sources too. The order of
        the rows must be the same in every try. (paths and SQL are templated)
    :param columns: the columns of `source` in the payload. Default: all but `job_name_column`.
    :param rename: the names of columns of `source` in the payload, as a mapping from the old to the
        new name. Default: none.
    :param key_column: the column of `source` that identifies a row, or a list of columns. It is
        stored with the batch and returned with the results. Default: none.
    :param job_name_column: the column of `source` with the name of the job. Default: `job_name`.
    :param job_name: the name of the jobs. Workers select the handler by it. Default: no name.
        (templated)
    :param job_id: an explicit id for a single `payload`. Default: an id derived from the DAG, the
        run, the task and the map index. (templated)
    :param dedup_ttl: how long the server remembers an explicit `job_id` and ignores another job
        with the same id (duration). Default: 7 days. (templated)
    :param delay: the delay before the jobs run (duration). Default: none. (templated)
    :param run_at: the time at which the jobs run, instead of `delay`: a datetime or ISO 8601 text.
        Text without a time zone is in UTC. Default: at once. (templated)
    :param job_retry: the retry policy of the jobs: a RetryPolicy, a number of attempts, or a
        mapping such as `{"max_attempts": 5, "backoff": {"kind": "exponential", "delay": "1s",
        "max_delay": "5m"}}`. Default: the policy of the worker. (templated)
    :param batch_id: an explicit id for the batch, instead of the derived one. Characters that a
        batch id cannot have, such as the colons of a run id, become `-`. Default: an id derived
        from the deployment, the DAG, the run, the task and the map index. (templated)
    :param on_retry: the behaviour of a later try of the task. "replay" (default if
        `wait_for_completion` is set) finds the jobs that were enqueued before and replays the dead
        ones. "reattach" (default otherwise) leaves dead jobs dead; if the task waits for them it
        fails without further retries. "resubmit" enqueues the jobs again.
    :param on_clear: the behaviour after the task was cleared. "resend" (default) cancels the
        unfinished jobs that were enqueued before and enqueues the jobs again. "reattach" finds the
        jobs that were enqueued before.
    :param on_change: the behaviour of a later try if its payloads differ from those that were
        enqueued before. "resend" (default) logs a warning, cancels the unfinished jobs and enqueues
        the new payloads. "fail" fails the task. "keep" logs a warning and ignores the new payloads.
    :param wait_for_completion: whether to wait until the jobs are done. The task fails with the
        error of the job if the job dies. The XCom `result` (or `results`) contains the return
        values of the handlers if the workers store results. Default: False.
    :param deferrable: whether to wait in the triggerer, without a worker slot. Default: the
        `default_deferrable` option of Airflow's section `[operators]`.
    :param wait_timeout: how long to wait (duration). Default: no limit. (templated)
    :param max_failed: how many jobs of `payloads` or `batch` may die before the task fails, or None
        for no limit: an integer or decimal text. If `max_failed_ratio` is given too, the larger
        limit applies. Default: 0. (templated)
    :param max_failed_ratio: the fraction of the jobs that may die: a number or decimal text.
        Default: None. (templated)
    :param fail_fast: whether to fail as soon as too many jobs died, without waiting for the others.
        Default: False.
    :param progress_interval: the time between two log lines about the progress of a batch
        (duration). Default: 30 seconds. (templated)
    :param cancel_on_kill: whether to cancel the unfinished jobs when the task is killed: by a user,
        by `execution_timeout`, or because its process must end. The next try of the task enqueues
        them again. Default: False, the jobs run and the next try finds them.
    :param chasqui_conn_id: the id of the Airflow connection. Default: `chasqui_default`.
        (templated)
    """

    template_fields: Sequence[str] = (
        "queue_name",
        "payload",
        "payloads",
        "batch",
        "source",
        "job_name",
        "job_id",
        "batch_id",
        "dedup_ttl",
        "delay",
        "run_at",
        "job_retry",
        "wait_timeout",
        "max_failed",
        "max_failed_ratio",
        "progress_interval",
        "chasqui_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"payload": "json"}
    operator_extra_links = (ChasquiJobLink(),)
    # Whether a later try compares its payloads with a batch that was sent completely.
    _compare_complete = True
    _owner = ""
    ui_color = "#f3e3d3"

    def __init__(
        self,
        *,
        queue_name: str | None = None,
        payload: Any = NOT_GIVEN,
        payloads: Any = NOT_GIVEN,
        batch: Any = NOT_GIVEN,
        source: Any = NOT_GIVEN,
        columns: Sequence[str] | None = None,
        rename: Mapping[str, str] | None = None,
        key_column: str | Sequence[str] | None = None,
        job_name_column: str | None = None,
        job_name: str = "",
        job_id: str | None = None,
        dedup_ttl: timedelta | float | str = timedelta(days=7),
        delay: timedelta | float | str | None = None,
        run_at: datetime | str | None = None,
        job_retry: Any = None,
        batch_id: str | None = None,
        on_retry: OnRetry | None = None,
        on_clear: OnClear = "resend",
        on_change: OnChange = "resend",
        wait_for_completion: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        wait_timeout: timedelta | float | str | None = None,
        max_failed: int | str | None = 0,
        max_failed_ratio: float | str | None = None,
        fail_fast: bool = False,
        progress_interval: timedelta | float | str = 30.0,
        cancel_on_kill: bool = False,
        chasqui_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self._payload_kind = self._select_payload_kind(
            payload=payload, payloads=payloads, batch=batch, source=source
        )
        self.payload = None if payload is NOT_GIVEN else payload
        self.payloads = None if payloads is NOT_GIVEN else PayloadList(payloads)
        self.batch = None if batch is NOT_GIVEN else PayloadList(batch)
        self.source = None if source is NOT_GIVEN else SourceArgument(source)
        self.row_options = RowOptions(columns, rename or {}, key_column, job_name_column)
        if self._payload_kind != "source" and not self.row_options.is_default:
            raise InvalidArgument(
                "columns, rename, key_column and job_name_column need source, but "
                f"{self._payload_kind} was given"
            )
        self.job_name = job_name
        self.job_id = job_id
        self.dedup_ttl = dedup_ttl
        self.delay = delay
        self.run_at = run_at
        self.job_retry = job_retry
        self.batch_id = batch_id
        self.on_retry: OnRetry = on_retry or (
            "replay" if wait_for_completion and job_id is None else "reattach"
        )
        require_choice("on_retry", self.on_retry, ("reattach", "replay", "resubmit"))
        self.on_clear = on_clear
        require_choice("on_clear", on_clear, ("resend", "reattach"))
        self.on_change = on_change
        require_choice("on_change", on_change, ("resend", "fail", "keep"))
        self.wait_for_completion = wait_for_completion
        self.deferrable = deferrable
        self.wait_timeout = wait_timeout
        self.max_failed = max_failed
        self.max_failed_ratio = max_failed_ratio
        self.fail_fast = fail_fast
        self.progress_interval = progress_interval
        self.cancel_on_kill = cancel_on_kill
        self.chasqui_conn_id = chasqui_conn_id
        # The jobs that a kill cancels: set while this process sends them or waits for them.
        self._handle: EnqueueHandle | None = None
        self._killed = False

    def execute(self, context: Context) -> Any:
        """Enqueue the jobs, and wait for them if `wait_for_completion` is set."""
        try:
            with (
                fail_without_retry(self._is_final_error),
                ChasquiHook(self.chasqui_conn_id) as hook,
            ):
                result = self._execute(context, hook)
        except Exception:
            # Not if `execution_timeout` ends this method, because Airflow calls `on_kill` after it.
            self._handle = None
            raise
        self._handle = None
        return result

    def _execute(self, context: Context, hook: ChasquiHook) -> Any:
        request = self._build_request(context)
        queue = hook.queue(self.queue_name)

        def before_send(handle: EnqueueHandle) -> None:
            self._stop_if_killed()
            self._handle = handle
            link = build_page_url(self.chasqui_conn_id, queue.name, **handle.ui_query)
            context["ti"].xcom_push(key=LINK_XCOM_KEY, value=link)

        result = enqueue_once(queue, request, self.log, before_send)
        handle = self._handle = result.handle
        if result.created:
            task_stats.incr("jobs_enqueued", handle.total or 0, queue.name)
        if self.wait_for_completion:
            return self._complete(context, hook, self._wait_or_defer(hook, result))
        self._set_outlet_extra(context, handle, {})
        return handle.to_xcom()

    def execute_complete(
        self, context: Context, event: dict[str, Any], sent: dict[str, Any] | None = None
    ) -> Any:
        """Finish the task after the trigger fired.

        :param context: the task's context.
        :param event: the event of the trigger.
        :param sent: the jobs for which this try waits, as fields of EnqueueHandle.
        """
        with fail_without_retry(self._is_final_error), ChasquiHook(self.chasqui_conn_id) as hook:
            if sent is not None and is_event_of_other_try(context["ti"], event):
                self.log.info("enqueue: ignored the event of a trigger of an earlier try")
                self._owner = owner_of(context["ti"])
                enqueued = EnqueueOnceResult(EnqueueHandle(**sent), "0-0", created=False)
                event = self._wait_or_defer(hook, enqueued)
            return self._complete(context, hook, event)

    def on_kill(self) -> None:
        """Cancel the unfinished jobs and stop sending, if `cancel_on_kill` is set."""
        handle = self._handle
        if handle is None or not self.cancel_on_kill:
            return
        self._killed = True
        with ChasquiHook(self.chasqui_conn_id) as hook:
            result = cancel_enqueued(hook.queue(handle.queue_name), handle, self._owner)
        self.log.info("enqueue: the task was killed; cancel of %s: %s", handle.description, result)

    def _is_final_error(self, error: ChasquiError) -> bool:
        """Return whether a retry of the task would end with the same error."""
        if isinstance(error, BatchFailed | JobFailed):
            return self.on_retry == "reattach"
        # A user cancelled the batch, unless a kill of this process did.
        return isinstance(error, BatchCancelled) and not self._killed

    def _stop_if_killed(self) -> None:
        if self._killed:
            raise BatchCancelled("the task was killed; nothing more is sent")

    def _until_killed(self, payloads: Iterable[Any]) -> Iterator[Any]:
        for payload in payloads:
            self._stop_if_killed()
            yield payload

    def _select_payload_kind(self, **arguments: Any) -> PayloadKind:
        """Return the name of the argument that was given."""
        given: list[Any] = [name for name, value in arguments.items() if value is not NOT_GIVEN]
        if len(given) != 1:
            raise InvalidArgument(
                "pass exactly one of payload, payloads, batch and source; given: "
                f"{', '.join(given) or 'none of them'}"
            )
        return given[0]  # type: ignore[no-any-return]

    def _payload_rows(self, context: Context) -> Iterable[Any]:
        """Return the payloads of this try, or those of a source as encoded chunks."""
        if self._payload_kind == "payload":
            return [self.payload]
        if self.source is not None:
            return self.source.chunks(context, self.row_options)
        values = getattr(self, self._payload_kind)
        return values.rows(self._payload_kind)  # type: ignore[no-any-return]

    def _build_request(self, context: Context) -> EnqueueRequest:
        if self.job_id is not None:
            if self._payload_kind != "payload" or self.batch_id is not None:
                other = self._payload_kind if self._payload_kind != "payload" else "batch_id"
                raise InvalidArgument(
                    f"job_id requires a single payload without batch_id, but {other} was given; "
                    "the jobs of a batch get generated ids"
                )
            if self.on_retry != "reattach":
                raise InvalidArgument(
                    f"with job_id, on_retry must be 'reattach', not {self.on_retry!r}"
                )
        ti: Any = context["ti"]
        self._owner = owner_of(ti)
        ids = batch_ids(ti, batch_id=self.batch_id, per_try=self.on_retry == "resubmit")
        return EnqueueRequest(
            payloads=lambda: self._until_killed(self._payload_rows(context)),
            batch_id=ids.current,
            first_use=self.batch_id is not None and ti.try_number == 1,
            earlier_batch_ids=ids.earlier,
            single=self._payload_kind == "payload",
            job_id=self.job_id,
            dedup_ttl=parse_duration(self.dedup_ttl, "dedup_ttl"),
            job_name=self.job_name,
            delay=_parsing.parse_duration(self.delay, "delay"),
            run_at=_parsing.parse_datetime(self.run_at, "run_at"),
            retry=parse_retry_policy(self.job_retry, "job_retry"),
            source=f"airflow:{ti.dag_id}/{ti.run_id}/{ti.task_id}",
            owner=self._owner,
            on_retry=self.on_retry,
            on_clear=self.on_clear,
            on_change=self.on_change,
            compare_complete=self._compare_complete,
            encoded=self._payload_kind == "source",
        )

    def _set_outlet_extra(
        self, context: Context, handle: EnqueueHandle, counts: dict[str, Any]
    ) -> None:
        """Add the job or the batch to the asset events of the outlets that are queues."""
        extra = {"queue_name": handle.queue_name, "count": handle.total, **handle.ui_query}
        if handle.job_id is None:
            extra["handle"] = handle.to_xcom()
        extra |= {name: counts[name] for name in ("done", "dead", "lost") if name in counts}
        set_outlet_extra(self.outlets, context, extra)

    def _wait_or_defer(self, hook: ChasquiHook, enqueued: EnqueueOnceResult) -> dict[str, Any]:
        """Return the event of the finished jobs, or defer the task."""
        timeout = _parsing.parse_duration(self.wait_timeout, "wait_timeout")
        if not self.deferrable:
            return self._wait(hook, enqueued, timeout)
        if not enqueued.created:
            # Jobs of an earlier try are often finished. Deferring for them is not only slow: if the
            # scheduler learns of the end of this process after the task was resumed, it marks the
            # resumed task as killed.
            event = self._wait(hook, enqueued, _QUICK_CHECK_TIMEOUT)
            if event.get("kind") != WaitTimeout.__name__:
                return event
        from airflow_provider_chasqui.triggers import _waiting

        deadline, airflow_timeout = _waiting.defer_timeouts(timeout)
        trigger = self._build_trigger(enqueued, deadline)
        self._handle = None
        self.defer(
            trigger=trigger,
            method_name="execute_complete",
            kwargs={"sent": asdict(enqueued.handle)},
            timeout=airflow_timeout,
        )

    def _wait(
        self, hook: ChasquiHook, enqueued: EnqueueOnceResult, timeout: timedelta | None
    ) -> dict[str, Any]:
        """Wait in this process and return the event that the trigger would emit."""
        from airflow_provider_chasqui.triggers import _waiting

        handle, events_after = enqueued.handle, enqueued.events_after
        source = _waiting.QueueSource(self.chasqui_conn_id, handle.queue_name, hook)
        seconds = None if timeout is None else timeout.total_seconds()
        if self._payload_kind == "payload":
            wait = _waiting.wait_job(
                source,
                handle.job_id or "",
                events_after,
                timeout=seconds,
                log=self.log.info,
                log_interval=self._progress_interval_s,
            )
        else:
            wait = _waiting.wait_batch(
                source,
                handle.batch_id or "",
                events_after,
                self._failure_limit,
                self.log.info,
                self._progress_interval_s,
                timeout=seconds,
            )
        return _waiting.wait_in_process(wait)

    def _build_trigger(self, enqueued: EnqueueOnceResult, deadline: float | None) -> Any:
        from airflow_provider_chasqui.triggers.batch import ChasquiBatchTrigger
        from airflow_provider_chasqui.triggers.job import ChasquiJobTrigger

        handle = enqueued.handle
        common: dict[str, Any] = {
            "queue_name": handle.queue_name,
            "events_after": enqueued.events_after,
            "progress_interval": self._progress_interval_s,
            "deadline": deadline,
            "cancel_on_kill": self.cancel_on_kill,
            "owner": self._owner,
            "chasqui_conn_id": self.chasqui_conn_id,
        }
        if self._payload_kind == "payload":
            return ChasquiJobTrigger(job_id=handle.job_id or "", **common)
        limit = self._failure_limit
        return ChasquiBatchTrigger(
            batch_id=handle.batch_id or "",
            max_failed=limit.max_failed,
            max_failed_ratio=limit.max_failed_ratio,
            fail_fast=limit.fail_fast,
            **common,
        )

    @property
    def _failure_limit(self) -> FailureLimit:
        from airflow_provider_chasqui.triggers._waiting import FailureLimit

        return FailureLimit.parse(self.max_failed, self.max_failed_ratio, self.fail_fast)

    @property
    def _progress_interval_s(self) -> float:
        return parse_duration(self.progress_interval, "progress_interval").total_seconds()

    def _complete(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        """Check the event, push the counts and the results, and return the XCom value."""
        from airflow_provider_chasqui.triggers import _waiting

        is_single = self._payload_kind == "payload"
        stat_name = "job_wait" if is_single else "batch_wait"
        task_stats.record_wait(stat_name, context, event.get("queue_name", ""))
        if is_single:
            counts = _waiting.job_counts(event) or {}
            if counts.get("dead"):
                context["ti"].xcom_push(key="counts", value=counts)
            _waiting.check_job_event(event, self.queue_name)
        else:
            if "total" in event:
                # Also if too many jobs died, for tasks that run after a failure.
                counts = {name: event[name] for name in _COUNT_NAMES}
                context["ti"].xcom_push(key="counts", value=counts)
            counts = _waiting.check_batch_event(event, self.queue_name, self._failure_limit)
        handle = EnqueueHandle.from_event(event)
        self.log.info("enqueue: %s is finished", handle.description)
        self._set_outlet_extra(context, handle, counts)
        if self._payload_kind in ("payload", "payloads"):
            counts |= self._push_results(context, hook, handle, counts)
        context["ti"].xcom_push(key="counts", value=counts)
        return handle.to_xcom()

    def _push_results(
        self, context: Context, hook: ChasquiHook, handle: EnqueueHandle, counts: dict[str, Any]
    ) -> dict[str, Any]:
        """Push the stored results, and return how many of them are missing."""
        total, done = handle.total or 0, counts["done"]
        if total > _MAX_RESULTS:
            self.log.warning(
                "enqueue: the results of %d jobs are not pushed as an XCom, at most %d are; read "
                "them with Queue.results",
                total,
                _MAX_RESULTS,
            )
            return {"missing_results": done}
        job_ids = handle.job_ids()
        results = hook.queue(handle.queue_name).results(job_ids)
        missing = done - len(results)
        if handle.job_id is not None and results:
            context["ti"].xcom_push(key="result", value=to_jsonable(results[handle.job_id]))
        elif results:
            ordered = [to_jsonable(results.get(job_id)) for job_id in job_ids]
            context["ti"].xcom_push(key="results", value=ordered)
        if done and not results:
            self.log.info(
                "enqueue: no results are stored; to return them, start the workers with "
                "--store-results (store_results=True in ConsumerConfig)"
            )
        elif missing > 0:
            self.log.warning(
                "enqueue: %d of %d results are missing: they expired (raise result_ttl of the "
                "workers), some workers do not store results (start all of them with "
                "--store-results), or the handler returned None",
                missing,
                done,
            )
        absent = [index for index, job_id in enumerate(job_ids) if job_id not in results]
        return {"missing_results": max(0, missing), "without_result": absent[:_MAX_LISTED]}
