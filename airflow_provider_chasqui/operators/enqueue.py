"""ChasquiEnqueueOperator: enqueue a job, several jobs or a batch, and optionally wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseOperator

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.durations import parse_duration
from airflow_provider_chasqui.core.errors import InvalidArgument, WaitTimeout
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
    enqueue_once,
)
from airflow_provider_chasqui.operators._task_identity import derive_id
from airflow_provider_chasqui.retry_policies import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.triggers._waiting import FailureLimit

OnRetry = Literal["reattach", "replay", "resubmit"]
_ON_RETRY_VALUES = ("reattach", "replay", "resubmit")
_MAX_RESULTS = 10_000
_QUICK_CHECK_TIMEOUT = timedelta(seconds=1)


class ChasquiEnqueueOperator(BaseOperator):
    """Operator that enqueues jobs exactly once, over all tries of the task, and may wait for them.

    Pass one of `payload` (one job; the XCom is its id), `payloads` (several jobs; the XCom is the
    list of their ids) and `batch` (many jobs; the XCom is a handle for ChasquiBatchSensor).

    Durations are a timedelta, a number of seconds, or text such as `30s` or `1h30m`.

    :param queue_name: the queue. Default: the `queue_name` of the connection. (templated)
    :param payload: the payload of one job: any JSON value, or the name of a `.json` file.
        (templated)
    :param payloads: the payloads of several jobs: an iterable, or the name of a `.json` file.
        (templated)
    :param batch: the payloads of a batch: an iterable, or the name of a `.json` file. (templated)
    :param job_name: the name of the jobs. Workers select the handler by it. Default: no name.
        (templated)
    :param job_id: an explicit id for a single `payload`. Default: an id derived from the DAG, the
        run, the task and the map index. (templated)
    :param dedup_ttl: how long the server remembers an explicit `job_id` and ignores another job
        with the same id (duration). Default: 7 days.
    :param delay: the delay before the jobs run (duration). Default: none. (templated)
    :param run_at: the time at which the jobs run, instead of `delay`: a datetime or ISO 8601 text.
        Text without a time zone is in UTC. Default: at once. (templated)
    :param job_retry: the retry policy of the jobs: a RetryPolicy, a number of attempts, or a
        mapping such as `{"max_attempts": 5, "backoff": {"kind": "exponential", "delay": "1s",
        "max_delay": "5m"}}`. Default: the policy of the worker. (templated)
    :param on_retry: the behaviour of a later try of the task, or after a clear. "reattach"
        (default) waits for the jobs that were enqueued before. "replay" does the same, but replays
        dead jobs first. "resubmit" enqueues the jobs again.
    :param wait_for_completion: whether to wait until the jobs are done. The task fails with the
        error of the job if the job dies. The XCom `result` (or `results`) contains the return
        values of the handlers if the workers store results. Default: False.
    :param deferrable: whether to wait in the triggerer, without a worker slot. Default: the
        `default_deferrable` option of Airflow's section `[operators]`.
    :param wait_timeout: how long to wait (duration). Default: no limit.
    :param max_failed: how many jobs of `payloads` or `batch` may die before the task fails, or None
        for no limit. If `max_failed_ratio` is given too, the larger limit applies. Default: 0.
    :param max_failed_ratio: the fraction of the jobs that may die. Default: None.
    :param fail_fast: whether to fail as soon as too many jobs died, without waiting for the others.
        Default: False.
    :param progress_interval: the time between two log lines about the progress of a batch
        (duration). Default: 30 seconds.
    :param cancel_on_kill: whether to cancel unfinished jobs when the task is killed. Default: True.
    :param chasqui_conn_id: the id of the Airflow connection. Default: `chasqui_default`.
        (templated)
    """

    template_fields: Sequence[str] = (
        "queue_name",
        "payload",
        "payloads",
        "batch",
        "job_name",
        "job_id",
        "delay",
        "run_at",
        "job_retry",
        "chasqui_conn_id",
    )
    template_ext: Sequence[str] = (".json",)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "payload": "json",
        "payloads": "json",
        "batch": "json",
    }
    operator_extra_links = (ChasquiJobLink(),)
    ui_color = "#f3e3d3"

    def __init__(
        self,
        *,
        queue_name: str | None = None,
        payload: Any = None,
        payloads: Any = None,
        batch: Any = None,
        job_name: str = "",
        job_id: str | None = None,
        dedup_ttl: timedelta | float | str = timedelta(days=7),
        delay: timedelta | float | str | None = None,
        run_at: datetime | str | None = None,
        job_retry: Any = None,
        on_retry: OnRetry = "reattach",
        wait_for_completion: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        wait_timeout: timedelta | float | str | None = None,
        max_failed: int | None = 0,
        max_failed_ratio: float | None = None,
        fail_fast: bool = False,
        progress_interval: timedelta | float | str = 30.0,
        cancel_on_kill: bool = True,
        chasqui_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.payload = payload
        self.payloads = payloads
        self.batch = batch
        self.job_name = job_name
        self.job_id = job_id
        self.dedup_ttl = dedup_ttl
        self.delay = delay
        self.run_at = run_at
        self.job_retry = job_retry
        self.on_retry = on_retry
        self.wait_for_completion = wait_for_completion
        self.deferrable = deferrable
        self.wait_timeout = wait_timeout
        self.max_failed = max_failed
        self.max_failed_ratio = max_failed_ratio
        self.fail_fast = fail_fast
        self.progress_interval = progress_interval
        self.cancel_on_kill = cancel_on_kill
        self.chasqui_conn_id = chasqui_conn_id
        # Template rendering replaces the name of a .json file by its text.
        self._json_file_fields = {
            name for name in ("payload", "payloads", "batch") if _is_json_file(getattr(self, name))
        }
        self._handle: EnqueueHandle | None = None

    def execute(self, context: Context) -> Any:
        """Enqueue the jobs, and wait for them if `wait_for_completion` is set."""
        with fail_without_retry(), ChasquiHook(self.chasqui_conn_id) as hook:
            request = self._build_request(context)
            queue = hook.queue(self.queue_name)
            handle = self._handle = request.handle_for(queue.name)
            link = build_page_url(self.chasqui_conn_id, queue.name, **handle.ui_query)
            context["ti"].xcom_push(key=LINK_XCOM_KEY, value=link)
            result = enqueue_once(
                queue, request, replay_dead=self.on_retry == "replay", log=self.log.info
            )
            if result.created:
                task_stats.incr("jobs_enqueued", handle.total, queue.name)
            self._set_outlet_extra(context, handle)
            if not self.wait_for_completion:
                return handle.to_xcom(self._payload_kind)
            return self._complete(context, hook, self._wait_or_defer(hook, result))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Finish the task after the trigger fired.

        :param context: the task's context.
        :param event: the event of the trigger.
        """
        with ChasquiHook(self.chasqui_conn_id) as hook:
            return self._complete(context, hook, event)

    def on_kill(self) -> None:
        """Cancel the unfinished jobs, if `cancel_on_kill` is set."""
        handle = self._handle
        if handle is None or not self.cancel_on_kill:
            return
        from airflow_provider_chasqui.core.commands.delayed import cancel_batch

        with ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(handle.queue_name)
            if handle.batch_id is None or handle.total == 1:
                queue.cancel(handle.first_job_id)
            else:
                queue.client.run_flow(cancel_batch(queue.keys, handle.batch_id, current_time_ms()))
        self.log.info(
            "enqueue: the task was killed; cancelled unfinished jobs of %s", handle.description
        )

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the queue as an OpenLineage output.

        :param task_instance: the task instance. It is not used.
        """
        from airflow_provider_chasqui.assets.chasqui import queue_lineage

        return queue_lineage(self.chasqui_conn_id, self.queue_name, output=True)

    @property
    def _payload_kind(self) -> str:
        """The argument that contains the payloads: "payload", "payloads" or "batch"."""
        given = [name for name in ("payloads", "batch") if getattr(self, name) is not None]
        if len(given) > 1 or (given and self.payload is not None):
            raise InvalidArgument(
                "only one of payload, payloads and batch is allowed; several were given"
            )
        require_choice("on_retry", self.on_retry, _ON_RETRY_VALUES)
        if self.job_id is not None:
            if given:
                raise InvalidArgument(
                    f"job_id requires a single payload, but {given[0]} was given; the jobs of a "
                    "batch get generated ids"
                )
            if self.on_retry != "reattach":
                raise InvalidArgument(
                    f"with job_id, on_retry must be 'reattach', not {self.on_retry!r}"
                )
        return given[0] if given else "payload"

    def _build_request(self, context: Context) -> EnqueueRequest:
        kind = self._payload_kind
        value = getattr(self, kind)
        if kind in self._json_file_fields:
            value = _parsing.parse_json(value, kind)
        ti = context["ti"]
        return EnqueueRequest(
            payloads=[value] if kind == "payload" else _parsing.parse_payloads(value, kind),
            batch_id=derive_id(ti, per_try=self.on_retry == "resubmit"),
            job_id=self.job_id,
            dedup_ttl=parse_duration(self.dedup_ttl, "dedup_ttl"),
            job_name=self.job_name,
            delay=_parsing.parse_duration(self.delay, "delay"),
            run_at=_parsing.parse_datetime(self.run_at, "run_at"),
            retry=parse_retry_policy(self.job_retry, "job_retry"),
            source=f"airflow:{ti.dag_id}/{ti.run_id}/{ti.task_id}",
        )

    def _set_outlet_extra(self, context: Context, handle: EnqueueHandle) -> None:
        """Add the job or the batch to the asset events of the outlets that are queues."""
        from airflow_provider_chasqui.assets.chasqui import SCHEME

        for outlet in self.outlets or ():
            if str(getattr(outlet, "uri", "")).startswith(f"{SCHEME}://"):
                events: Any = context["outlet_events"]
                events[outlet].extra = {"count": handle.total, **handle.ui_query}

    def _wait_or_defer(self, hook: ChasquiHook, enqueued: EnqueueOnceResult) -> dict[str, Any]:
        """Return the event of the finished jobs, or defer the task."""
        timeout = _parsing.parse_duration(self.wait_timeout, "wait_timeout")
        if not self.deferrable:
            return self._wait(hook, enqueued, timeout)
        if not enqueued.created:
            # Jobs of an earlier try are often finished. Deferring for them is not only slow: if the
            # scheduler learns of the end of this process after the task was resumed, it marks the
            # resumed task as killed.
            try:
                return self._wait(hook, enqueued, _QUICK_CHECK_TIMEOUT)
            except WaitTimeout:
                pass
        trigger = self._build_trigger(enqueued)
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)

    def _wait(
        self, hook: ChasquiHook, enqueued: EnqueueOnceResult, timeout: timedelta | None
    ) -> dict[str, Any]:
        """Wait in this process and return the event that the trigger would emit."""
        from airflow_provider_chasqui.triggers import _waiting

        handle, events_after = enqueued.handle, enqueued.events_after
        source = _waiting.QueueSource(self.chasqui_conn_id, handle.queue_name, hook)
        if self._payload_kind == "payload":
            wait = _waiting.wait_job(source, handle.first_job_id, events_after)
        else:
            wait = _waiting.wait_batch(
                source,
                handle.batch_id or "",
                events_after,
                self._failure_limit,
                self.log.info,
                self._progress_interval_s,
            )
        return _waiting.wait_in_process(wait, timeout, handle.description)

    def _build_trigger(self, enqueued: EnqueueOnceResult) -> Any:
        from airflow_provider_chasqui.triggers.batch import ChasquiBatchTrigger
        from airflow_provider_chasqui.triggers.job import ChasquiJobTrigger

        handle = enqueued.handle
        common: dict[str, Any] = {
            "queue_name": handle.queue_name,
            "events_after": enqueued.events_after,
            "cancel_on_kill": self.cancel_on_kill,
            "chasqui_conn_id": self.chasqui_conn_id,
        }
        if self._payload_kind == "payload":
            return ChasquiJobTrigger(job_id=handle.first_job_id, **common)
        return ChasquiBatchTrigger(
            batch_id=handle.batch_id or "",
            max_failed=self.max_failed,
            max_failed_ratio=self.max_failed_ratio,
            fail_fast=self.fail_fast,
            progress_interval=self._progress_interval_s,
            **common,
        )

    @property
    def _failure_limit(self) -> FailureLimit:
        from airflow_provider_chasqui.triggers._waiting import FailureLimit

        return FailureLimit(self.max_failed, self.max_failed_ratio, self.fail_fast)

    @property
    def _progress_interval_s(self) -> float:
        return parse_duration(self.progress_interval, "progress_interval").total_seconds()

    def _complete(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        """Check the event, push the results and return the XCom value."""
        from airflow_provider_chasqui.triggers import _waiting

        is_single = self._payload_kind == "payload"
        stat_name = "job_wait" if is_single else "batch_wait"
        task_stats.record_wait(stat_name, context, event.get("queue_name", ""))
        if is_single:
            _waiting.check_job_event(event, self.queue_name)
        else:
            counts = _waiting.check_batch_event(event, self.queue_name, self._failure_limit)
            context["ti"].xcom_push(key="counts", value=counts)
        handle = EnqueueHandle.from_event(event)
        self.log.info("enqueue: %s is finished", handle.description)
        if is_single or (self._payload_kind == "payloads" and handle.total <= _MAX_RESULTS):
            job_ids = handle.job_ids()
            results = hook.queue(handle.queue_name).results(job_ids)
            if is_single and results:
                context["ti"].xcom_push(key="result", value=results[job_ids[0]])
            elif results:
                ordered = [results.get(job_id) for job_id in job_ids]
                context["ti"].xcom_push(key="results", value=ordered)
        return handle.to_xcom(self._payload_kind)


def _is_json_file(value: Any) -> bool:
    return isinstance(value, str) and value.endswith(".json")
