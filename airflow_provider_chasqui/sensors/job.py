"""ChasquiJobSensor: wait until a job is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.links.job import XCOM_KEY, ChasquiJobLink, page_link
from airflow_provider_chasqui.sensors.waiting import WaitingSensor

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.triggers.waits import Source


class ChasquiJobSensor(WaitingSensor):
    """Waits until a job is done and returns its result, where workers keep it.

    Fails with the job's own error if it dies, and with UnknownJob if no trace of it is left.

    :param job_id: the id that ChasquiEnqueueOperator returned.
    :param since: a place in the events from before the job was added; spares reading all of them.
    """

    template_fields: Sequence[str] = ("queue_name", "job_id", "since", "chasqui_conn_id")
    operator_extra_links = (ChasquiJobLink(),)
    timed_as = "job_wait"

    def __init__(self, *, queue_name: str, job_id: str, since: str = "0-0", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.job_id = job_id
        self.since = since

    def announce(self, context: Context) -> None:
        link = page_link(self.chasqui_conn_id, self.queue_name, job=self.job_id)
        context["ti"].xcom_push(key=XCOM_KEY, value=link)

    def trigger(self) -> Any:
        from airflow_provider_chasqui.triggers.job import ChasquiJobTrigger

        return ChasquiJobTrigger(
            queue_name=self.queue_name,
            job_id=self.job_id,
            since=self.since,
            chasqui_conn_id=self.chasqui_conn_id,
        )

    def wait(self, source: Source) -> Any:
        from airflow_provider_chasqui.triggers.waits import wait_job

        return wait_job(source, self.job_id, self.since)

    def judge(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        from airflow_provider_chasqui.triggers.waits import judge_job

        judge_job(event, self.queue_name)
        return hook.queue(self.queue_name).result(self.job_id)

    def poke(self, context: Context) -> bool | PokeReturnValue:
        from airflow_provider_chasqui.triggers.watch import JobEnd

        self.announce(context)
        with ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(self.queue_name)
            found = queue.find(self.job_id)
            self.log.info("The job %s is %s", self.job_id, found.state)
            if found.state not in ("done", "dead", "unknown"):
                return False
            end = JobEnd(self.job_id, found.state, found.reason)
            if found.state == "dead":
                letters = queue.letters(limit=1, newest_first=True, job_ids=[self.job_id])
                end = JobEnd.dead(self.job_id, letters[0] if letters else None, found.reason)
            return PokeReturnValue(True, self.ended(context, hook, end.as_dict()))
