"""ChasquiEnqueueOperator: hand off one job, many, or a batch; and wait for them, if wanted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseOperator

from airflow_provider_chasqui.core.errors import InvalidArgument, WaitTimeout
from airflow_provider_chasqui.hooks._stats import task_stats
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.links.job import LINK_XCOM_KEY, ChasquiJobLink, build_page_url
from airflow_provider_chasqui.operators import _parsing
from airflow_provider_chasqui.operators._enqueue import EnqueueHandle, EnqueueRequest, enqueue_once
from airflow_provider_chasqui.operators._task_identity import derive_id
from airflow_provider_chasqui.retry_policies import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context

OnRetry = Literal["reattach", "replay", "resubmit"]
_ON_RETRY_VALUES = ("reattach", "replay", "resubmit")
_MAX_RESULTS = 10_000
_QUICK_CHECK_TIMEOUT = timedelta(seconds=1)


class ChasquiEnqueueOperator(BaseOperator):
    """Hands jobs to a queue, exactly once however often the task is tried, and may wait for them.

    Give `payload` for one job (XCom: its id), `payloads` for many (XCom: their ids), or `batch` for
    very many (XCom: a handle that ChasquiBatchSensor takes).

    :param queue_name: the queue; without it, the one that the connection names.
    :param payload: what the job carries: any JSON value, a template, or a `.json` file.
    :param job_name: what the jobs are called; workers choose the handler by it.
    :param job_id: an id of your own for a single job. Without it the id comes from dag, run, task
        and map index.
    :param dedup_ttl: how long an id of your own stays taken.
    :param delay: run that much later (timedelta or seconds); or `run_at`: at that time.
    :param job_retry: how often and when the workers try again: a RetryPolicy, a number of attempts,
        or a mapping with max_attempts, backoff, delay, max_delay, multiplier, jitter.
    :param on_retry: what another try of the task, or a clear, does. "reattach" follows what was
        sent before, "replay" does so too but puts dead jobs back first, "resubmit" sends anew.
    :param wait_for_completion: end when the jobs have ended; fail with the job's own error. The
        XCom `result` (or `results`) then holds what the handlers returned, where workers keep it.
    :param deferrable: wait in the triggerer, holding no worker slot.
    :param wait_timeout: how long to wait (timedelta or seconds).
    :param max_failed: how many jobs of `payloads` or `batch` may die; or `max_failed_ratio`.
    :param fail_fast: do not wait for the rest once more have died than may.
    :param cancel_on_kill: cancel what has not ended when a person ends the task.
    """

    template_fields: Sequence[str] = (
        "queue_name", "payload", "payloads", "batch", "job_name", "job_id", "delay", "run_at",
        "job_retry", "chasqui_conn_id",
    )  # fmt: skip
    template_ext: Sequence[str] = (".json",)
    template_fields_renderers = {"payload": "json", "payloads": "json", "batch": "json"}  # noqa: RUF012
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
        dedup_ttl: timedelta = timedelta(days=7),
        delay: timedelta | float | str | None = None,
        run_at: Any = None,
        job_retry: Any = None,
        on_retry: OnRetry = "reattach",
        wait_for_completion: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        wait_timeout: timedelta | float | None = None,
        max_failed: int | None = 0,
        max_failed_ratio: float | None = None,
        fail_fast: bool = False,
        progress_interval: float = 30.0,
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
        # Rendering puts the text of a .json file in the place of its name.
        self._json_file_fields = {
            name for name in ("payload", "payloads", "batch") if _is_json_file(getattr(self, name))
        }
        self._handle: EnqueueHandle | None = None

    def execute(self, context: Context) -> Any:
        with fail_without_retry(), ChasquiHook(self.chasqui_conn_id) as hook:
            order = self._build_request(context)
            name = hook.queue(self.queue_name).name
            handle = self._handle = order.handle_for(name)
            ti = context["ti"]
            ti.xcom_push(
                key=LINK_XCOM_KEY,
                value=build_page_url(self.chasqui_conn_id, name, **handle.ui_query),
            )
            sent = enqueue_once(
                hook.queue(name), order, replay_dead=self.on_retry == "replay", log=self.log.info
            )
            if sent.created:
                task_stats.incr("jobs_enqueued", sent.handle.total, name)
            self._set_outlet_extra(context, sent.handle)
            if not self.wait_for_completion:
                return sent.handle.to_xcom(self._payload_kind)
            event = None
            if self.deferrable:
                if not sent.created:
                    event = self._event_if_finished(hook, sent.handle, sent.events_after)
                if event is None:
                    self._defer(sent.handle, sent.events_after)
            if event is None:
                timeout = _parsing.parse_duration(self.wait_timeout, "wait_timeout")
                event = self._wait(hook, sent.handle, sent.events_after, timeout)
            return self._complete(context, hook, event)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on after the trigger fired."""
        with ChasquiHook(self.chasqui_conn_id) as hook:
            return self._complete(context, hook, event)

    def on_kill(self) -> None:
        """Cancel what was sent and has not ended."""
        handle = self._handle
        if handle is None or not self.cancel_on_kill:
            return
        from airflow_provider_chasqui.core.commands.delayed import cancel_batch

        with ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(handle.queue_name)
            if handle.batch_id is None or handle.total == 1:
                queue.cancel(handle.first_job_id)
            else:
                now_ms = time.time_ns() // 1_000_000
                queue.client.run_flow(cancel_batch(queue.keys, handle.batch_id, now_ms))
        self.log.info("Cancelled what had not ended of %s", handle.description)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Tell OpenLineage that this task writes to the queue."""
        from airflow_provider_chasqui.assets.chasqui import queue_lineage

        return queue_lineage(self.chasqui_conn_id, self.queue_name, output=True)

    @property
    def _payload_kind(self) -> str:
        given = [name for name in ("payloads", "batch") if getattr(self, name) is not None]
        if len(given) > 1 or (given and self.payload is not None):
            raise InvalidArgument("give payload, payloads or batch; not several of them")
        if given and self.job_id is not None:
            raise InvalidArgument(
                "job_id is for a single payload; the jobs of a batch have ids of theirs"
            )
        if self.on_retry not in _ON_RETRY_VALUES:
            raise InvalidArgument(
                f"on_retry is one of {', '.join(_ON_RETRY_VALUES)}; not {self.on_retry!r}"
            )
        if self.job_id is not None and self.on_retry != "reattach":
            raise InvalidArgument("an id of your own is sent once: on_retry can only be 'reattach'")
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
            dedup_ttl=self.dedup_ttl,
            job_name=self.job_name,
            delay=_parsing.parse_duration(self.delay, "delay"),
            run_at=_parsing.parse_datetime(self.run_at, "run_at"),
            retry=_parsing.parse_retry_policy(self.job_retry),
            source=f"airflow:{ti.dag_id}/{ti.run_id}/{ti.task_id}",
        )

    def _set_outlet_extra(self, context: Context, handle: EnqueueHandle) -> None:
        from airflow_provider_chasqui.assets.chasqui import SCHEME

        for outlet in self.outlets or ():
            if str(getattr(outlet, "uri", "")).startswith(f"{SCHEME}://"):
                events: Any = context["outlet_events"]
                events[outlet].extra = {"count": handle.total, **handle.ui_query}

    def _defer(self, handle: EnqueueHandle, events_after: str) -> None:
        self.defer(
            trigger=self._build_trigger(handle, events_after),
            method_name="execute_complete",
            timeout=_parsing.parse_duration(self.wait_timeout, "wait_timeout"),
        )

    def _build_trigger(self, handle: EnqueueHandle, events_after: str) -> Any:
        from airflow_provider_chasqui.triggers.batch import ChasquiBatchTrigger
        from airflow_provider_chasqui.triggers.job import ChasquiJobTrigger

        common: dict[str, Any] = {
            "queue_name": handle.queue_name,
            "events_after": events_after,
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
            progress_interval=self.progress_interval,
            **common,
        )

    def _event_if_finished(
        self, hook: ChasquiHook, handle: EnqueueHandle, events_after: str
    ) -> dict[str, Any] | None:
        """Return how it ended if it has ended already, which often is so on another try.

        That is not deferred: a scheduler that hears of the end of this process only after the task
        was resumed takes the resumed one for killed.
        """
        try:
            return self._wait(hook, handle, events_after, _QUICK_CHECK_TIMEOUT)
        except WaitTimeout:
            return None

    def _wait(
        self, hook: ChasquiHook, handle: EnqueueHandle, events_after: str, timeout: timedelta | None
    ) -> dict[str, Any]:
        from airflow_provider_chasqui.triggers import _waiting

        source = _waiting.QueueSource(self.chasqui_conn_id, handle.queue_name, hook)
        if self._payload_kind == "payload":
            wait = _waiting.wait_job(source, handle.first_job_id, events_after)
        else:
            wait = _waiting.wait_batch(
                source, handle.batch_id or "", events_after, self._failure_limit, self.log.info,
                self.progress_interval,
            )  # fmt: skip
        return _waiting.wait_in_process(wait, timeout, handle.description)

    @property
    def _failure_limit(self) -> Any:
        from airflow_provider_chasqui.triggers._waiting import FailureLimit

        return FailureLimit(self.max_failed, self.max_failed_ratio, self.fail_fast)

    def _complete(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        from airflow_provider_chasqui.triggers import _waiting

        one = self._payload_kind == "payload"
        task_stats.record_wait(
            "job_wait" if one else "batch_wait", context, event.get("queue_name", "")
        )
        if one:
            _waiting.check_job_event(event, self.queue_name)
        else:
            counts = _waiting.check_batch_event(event, self.queue_name, self._failure_limit)
            context["ti"].xcom_push(key="counts", value=counts)
        handle = EnqueueHandle.from_event(event)
        self.log.info("All of %s has ended", handle.description)
        if one or (self._payload_kind == "payloads" and handle.total <= _MAX_RESULTS):
            ids = handle.job_ids()
            kept = hook.queue(handle.queue_name).results(ids)
            if one and kept:
                context["ti"].xcom_push(key="result", value=kept[ids[0]])
            elif kept:
                context["ti"].xcom_push(key="results", value=[kept.get(each) for each in ids])
        return handle.to_xcom(self._payload_kind)


def _is_json_file(value: Any) -> bool:
    return isinstance(value, str) and value.endswith(".json")
