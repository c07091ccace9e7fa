"""ChasquiNotifier: tell a queue that a task or a DAG run succeeded, failed, or is late."""

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
    """Puts a job on a queue when its callback is called; the same news is told once.

    The payload says which DAG, run, task and state, and holds what `payload` adds.

        DAG(..., on_failure_callback=ChasquiNotifier(queue_name="alerts", job_name="dag-failed"))

    :param payload: a mapping that is added to what is told; templates are rendered.
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
        """Enqueue, blocking: for callbacks in the task and in the DAG processor."""
        job = self._build_job(context)
        with ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(self.queue_name)
            (added,) = queue.add_many([job])
        task_stats.incr("jobs_enqueued", int(added.created), queue.name)

    async def async_notify(self, context: Context) -> None:
        """Enqueue, awaiting: for deadline alerts and other callbacks in the triggerer."""
        job = self._build_job(context)
        async with await ChasquiHook(self.chasqui_conn_id).async_queue(self.queue_name) as queue:
            (added,) = await queue.add_many([job])
        triggerer_stats.incr("jobs_enqueued", int(added.created), queue.name)

    def _build_job(self, context: Mapping[str, Any]) -> NewJob:
        about = _describe_context(context)
        payload = about | dict(self.payload or {})
        if "run_id" not in about:
            return NewJob(payload, job_name=self.job_name)
        # A callback may be called again after a crash: the same news has the same id.
        words = json.dumps([about, self.job_name, self.payload], sort_keys=True, default=str)
        mark = hashlib.sha256(words.encode()).hexdigest()[:32]
        return NewJob(
            payload, job_name=self.job_name, job_id=f"notification-{mark}", dedup_ttl=_DEDUP_TTL
        )


def _describe_context(context: Mapping[str, Any]) -> dict[str, Any]:
    """What the context knows of the DAG run and the task instance, as JSON."""
    about: dict[str, Any] = {}
    ti, run = context.get("ti") or context.get("task_instance"), context.get("dag_run")
    for name in ("dag_id", "run_id", "task_id", "map_index", "try_number"):
        value = getattr(ti, name, None)
        if value is None and name in ("dag_id", "run_id"):
            value = getattr(run, name, None)
        if value is not None:
            about[name] = value
    state = getattr(ti, "state", None) or getattr(run, "state", None)
    if state is not None:
        about["state"] = str(getattr(state, "value", state))
    if context.get("reason"):
        about["reason"] = str(context["reason"])
    if context.get("exception"):
        about["error"] = str(context["exception"])
    return about
