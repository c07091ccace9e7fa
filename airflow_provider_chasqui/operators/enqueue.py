"""ChasquiEnqueueOperator: hand off one job, many, or a batch; and wait for them, if wanted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseOperator

from airflow_provider_chasqui.core.errors import BadInput, WaitTimeout
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.hooks.stats import in_task
from airflow_provider_chasqui.links.job import XCOM_KEY, ChasquiJobLink, page_link
from airflow_provider_chasqui.operators import options
from airflow_provider_chasqui.operators.identity import derived_id
from airflow_provider_chasqui.operators.sending import Handle, Order, send
from airflow_provider_chasqui.policies import no_retry_of_bad_input

if TYPE_CHECKING:
    from airflow.sdk import Context

OnRetry = Literal["reattach", "replay", "resubmit"]
_ON_RETRY = ("reattach", "replay", "resubmit")
_RESULTS = 10_000
_LOOK = timedelta(seconds=1)


class ChasquiEnqueueOperator(BaseOperator):
    """Hands jobs to a queue, exactly once however often the task is tried, and may wait for them.

    Give `payload` for one job (XCom: its id), `payloads` for many (XCom: their ids), or `batch` for
    very many (XCom: a handle that ChasquiBatchSensor takes).

    :param queue_name: the queue; without it, the one that the connection names.
    :param payload: what the job carries: any JSON value, a template, or a `.json` file.
    :param job_name: what the jobs are called; workers choose the handler by it.
    :param job_id: an id of your own for a single job. Without it the id comes from dag, run, task
        and map index.
    :param unique_for: how long an id of your own stays taken.
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
        unique_for: timedelta = timedelta(days=7),
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
        self.unique_for = unique_for
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
        self._files = {
            name for name in ("payload", "payloads", "batch") if _is_file(getattr(self, name))
        }
        self._handle: Handle | None = None

    def execute(self, context: Context) -> Any:
        with no_retry_of_bad_input(), ChasquiHook(self.chasqui_conn_id) as hook:
            order = self._order(context)
            name = hook.queue(self.queue_name).name
            handle = self._handle = order.handle(name)
            ti = context["ti"]
            ti.xcom_push(key=XCOM_KEY, value=page_link(self.chasqui_conn_id, name, **handle.place))
            sent = send(
                hook.queue(name), order, replay=self.on_retry == "replay", say=self.log.info
            )
            if sent.fresh:
                in_task.count("jobs_enqueued", sent.handle.total, name)
            self._emit(context, sent.handle)
            if not self.wait_for_completion:
                return sent.handle.returned(self._kind)
            event = None
            if self.deferrable:
                if not sent.fresh:
                    event = self._ended(hook, sent.handle, sent.since)
                if event is None:
                    self._defer(sent.handle, sent.since)
            if event is None:
                timeout = options.span(self.wait_timeout, "wait_timeout")
                event = self._wait(hook, sent.handle, sent.since, timeout)
            return self._finish(context, hook, event)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on after the trigger fired."""
        with ChasquiHook(self.chasqui_conn_id) as hook:
            return self._finish(context, hook, event)

    def on_kill(self) -> None:
        """Cancel what was sent and has not ended."""
        handle = self._handle
        if handle is None or not self.cancel_on_kill:
            return
        from airflow_provider_chasqui.core.ops.cancelling import cancel_batch

        with ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(handle.queue_name)
            if handle.batch_id is None or handle.total == 1:
                queue.cancel(handle.first_job_id)
            else:
                now_ms = time.time_ns() // 1_000_000
                queue.drive.flow(cancel_batch(queue.keys, handle.batch_id, now_ms))
        self.log.info("Cancelled what had not ended of %s", handle.words)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Tell OpenLineage that this task writes to the queue."""
        from airflow_provider_chasqui.assets.chasqui import lineage_of_queue

        return lineage_of_queue(self.chasqui_conn_id, self.queue_name, output=True)

    @property
    def _kind(self) -> str:
        given = [name for name in ("payloads", "batch") if getattr(self, name) is not None]
        if len(given) > 1 or (given and self.payload is not None):
            raise BadInput("give payload, payloads or batch; not several of them")
        if given and self.job_id is not None:
            raise BadInput("job_id is for a single payload; the jobs of a batch have ids of theirs")
        if self.on_retry not in _ON_RETRY:
            raise BadInput(f"on_retry is one of {', '.join(_ON_RETRY)}; not {self.on_retry!r}")
        if self.job_id is not None and self.on_retry != "reattach":
            raise BadInput("an id of your own is sent once: on_retry can only be 'reattach'")
        return given[0] if given else "payload"

    def _order(self, context: Context) -> Order:
        kind = self._kind
        value = getattr(self, kind)
        if kind in self._files:
            value = options.from_file(value, kind)
        ti = context["ti"]
        return Order(
            payloads=[value] if kind == "payload" else options.listed(value, kind),
            batch_id=derived_id(ti, with_try=self.on_retry == "resubmit"),
            job_id=self.job_id,
            unique_for=self.unique_for,
            name=self.job_name,
            delay=options.span(self.delay, "delay"),
            at=options.instant(self.run_at, "run_at"),
            retry=options.retry(self.job_retry),
            source=f"airflow:{ti.dag_id}/{ti.run_id}/{ti.task_id}",
        )

    def _emit(self, context: Context, handle: Handle) -> None:
        from airflow_provider_chasqui.assets.chasqui import SCHEME

        for outlet in self.outlets or ():
            if str(getattr(outlet, "uri", "")).startswith(f"{SCHEME}://"):
                events: Any = context["outlet_events"]
                events[outlet].extra = {"count": handle.total, **handle.place}

    def _defer(self, handle: Handle, since: str) -> None:
        self.defer(
            trigger=self._trigger(handle, since),
            method_name="execute_complete",
            timeout=options.span(self.wait_timeout, "wait_timeout"),
        )

    def _trigger(self, handle: Handle, since: str) -> Any:
        from airflow_provider_chasqui.triggers.batch import ChasquiBatchTrigger
        from airflow_provider_chasqui.triggers.job import ChasquiJobTrigger

        common: dict[str, Any] = {
            "queue_name": handle.queue_name,
            "since": since,
            "cancel_on_kill": self.cancel_on_kill,
            "chasqui_conn_id": self.chasqui_conn_id,
        }
        if self._kind == "payload":
            return ChasquiJobTrigger(job_id=handle.first_job_id, **common)
        return ChasquiBatchTrigger(
            batch_id=handle.batch_id or "",
            max_failed=self.max_failed,
            max_failed_ratio=self.max_failed_ratio,
            fail_fast=self.fail_fast,
            progress_interval=self.progress_interval,
            **common,
        )

    def _ended(self, hook: ChasquiHook, handle: Handle, since: str) -> dict[str, Any] | None:
        """Return how it ended if it has ended already, which often is so on another try.

        That is not deferred: a scheduler that hears of the end of this process only after the task
        was resumed takes the resumed one for killed.
        """
        try:
            return self._wait(hook, handle, since, _LOOK)
        except WaitTimeout:
            return None

    def _wait(
        self, hook: ChasquiHook, handle: Handle, since: str, timeout: timedelta | None
    ) -> dict[str, Any]:
        from airflow_provider_chasqui.triggers import waits

        source = waits.Source(self.chasqui_conn_id, handle.queue_name, hook)
        if self._kind == "payload":
            wait = waits.wait_job(source, handle.first_job_id, since)
        else:
            wait = waits.wait_batch(
                source, handle.batch_id or "", since, self._limit, self.log.info,
                self.progress_interval,
            )  # fmt: skip
        return waits.here(wait, timeout, handle.words)

    @property
    def _limit(self) -> Any:
        from airflow_provider_chasqui.triggers.waits import Limit

        return Limit(self.max_failed, self.max_failed_ratio, self.fail_fast)

    def _finish(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        from airflow_provider_chasqui.triggers import waits

        one = self._kind == "payload"
        in_task.waited("job_wait" if one else "batch_wait", context, event.get("queue_name", ""))
        if one:
            waits.judge_job(event, self.queue_name)
        else:
            counts = waits.judge_batch(event, self.queue_name, self._limit)
            context["ti"].xcom_push(key="counts", value=counts)
        handle = Handle.of(event)
        self.log.info("All of %s has ended", handle.words)
        if one or (self._kind == "payloads" and handle.total <= _RESULTS):
            ids = handle.job_ids()
            kept = hook.queue(handle.queue_name).results(ids)
            if one and kept:
                context["ti"].xcom_push(key="result", value=kept[ids[0]])
            elif kept:
                context["ti"].xcom_push(key="results", value=[kept.get(each) for each in ids])
        return handle.returned(self._kind)


def _is_file(value: Any) -> bool:
    return isinstance(value, str) and value.endswith(".json")
