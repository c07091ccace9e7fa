"""ChasquiNotifier: enqueue a job when a task or a DAG run succeeds, fails or misses a deadline."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

from airflow_provider_chasqui.core.job import NewJob
from airflow_provider_chasqui.hooks._stats import task_stats, triggerer_stats
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook

if TYPE_CHECKING:
    from airflow.sdk import Context

_DEDUP_TTL = timedelta(days=1)


class ChasquiNotifier(BaseNotifier):
    """Notifier that enqueues a job. Repeated calls for the same event enqueue one job.

    The payload contains `dag_id`, `run_id`, `task_id`, `map_index`, `try_number`, `state`, `reason`
    and `error`, as far as the context has them, and the fields of `payload`.

        DAG(..., on_failure_callback=ChasquiNotifier(queue_name="alerts", job_name="dag-failed"))

    :param queue_name: the queue. Default: the `queue_name` of the connection. (templated)
    :param payload: a mapping of fields to add to the payload. Default: none. (templated)
    :param job_name: the name of the job. Default: `airflow-notification`. (templated)
    :param chasqui_conn_id: the id of the Airflow connection. Default: `chasqui_default`.
        (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "payload", "job_name", "chasqui_conn_id")

    def __init__(
        self,
        *,
        queue_name: str | None = None,
        payload: Mapping[str, Any] | None = None,
        job_name: str = "airflow-notification",
        chasqui_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.payload = payload
        self.job_name = job_name
        self.chasqui_conn_id = chasqui_conn_id

    def notify(self, context: Context) -> None:
        """Enqueue the job from a callback in the task or in the DAG processor.

        :param context: the context of the callback.
        """
        job = self._build_job(context)
        with ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(self.queue_name)
            (added,) = queue.add_many([job])
        task_stats.incr("jobs_enqueued", int(added.created), queue.name)

    async def async_notify(self, context: Context) -> None:
        """Enqueue the job from a callback in the triggerer, such as a deadline alert.

        :param context: the context of the callback.
        """
        job = self._build_job(context)
        async with await ChasquiHook(self.chasqui_conn_id).async_queue(self.queue_name) as queue:
            (added,) = await queue.add_many([job])
        triggerer_stats.incr("jobs_enqueued", int(added.created), queue.name)

    def _build_job(self, context: Mapping[str, Any]) -> NewJob:
        event = _describe_context(context)
        payload = event | dict(self.payload or {})
        if "run_id" not in event:
            return NewJob(payload, job_name=self.job_name)
        # Airflow may call a callback again after a crash. The same event has the same job id.
        key = json.dumps([event, self.job_name, self.payload], sort_keys=True, default=str)
        digest = hashlib.sha256(key.encode()).hexdigest()[:32]
        return NewJob(
            payload, job_name=self.job_name, job_id=f"notification-{digest}", dedup_ttl=_DEDUP_TTL
        )


def _describe_context(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity and the state of the task instance or the DAG run, as JSON values."""
    fields: dict[str, Any] = {}
    ti, run = context.get("ti") or context.get("task_instance"), context.get("dag_run")
    for name in ("dag_id", "run_id", "task_id", "map_index", "try_number"):
        value = getattr(ti, name, None)
        if value is None and name in ("dag_id", "run_id"):
            value = getattr(run, name, None)
        if value is not None:
            fields[name] = value
    state = getattr(ti, "state", None) or getattr(run, "state", None)
    if state is not None:
        fields["state"] = str(getattr(state, "value", state))
    if context.get("reason"):
        fields["reason"] = str(context["reason"])
    if context.get("exception"):
        fields["error"] = str(context["exception"])
    return fields
