"""ChasquiJobSensor: wait until a job is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.links.job import LINK_XCOM_KEY, ChasquiJobLink, build_page_url
from airflow_provider_chasqui.sensors._base import ChasquiSensorBase

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.triggers._waiting import QueueSource


class ChasquiJobSensor(ChasquiSensorBase):
    """Waits until a job is done and returns its result, where workers keep it.

    Fails with the job's own error if it dies, and with JobNotFound if no trace of it is left.

    :param job_id: the id that ChasquiEnqueueOperator returned.
    :param events_after: a place in the events from before the job was added; spares reading all of them.
    """

    template_fields: Sequence[str] = ("queue_name", "job_id", "events_after", "chasqui_conn_id")
    operator_extra_links = (ChasquiJobLink(),)
    stat_name = "job_wait"

    def __init__(
        self, *, queue_name: str, job_id: str, events_after: str = "0-0", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.job_id = job_id
        self.events_after = events_after

    def push_link(self, context: Context) -> None:
        link = build_page_url(self.chasqui_conn_id, self.queue_name, job=self.job_id)
        context["ti"].xcom_push(key=LINK_XCOM_KEY, value=link)

    def build_trigger(self) -> Any:
        from airflow_provider_chasqui.triggers.job import ChasquiJobTrigger

        return ChasquiJobTrigger(
            queue_name=self.queue_name,
            job_id=self.job_id,
            events_after=self.events_after,
            chasqui_conn_id=self.chasqui_conn_id,
        )

    def wait(self, source: QueueSource) -> Any:
        from airflow_provider_chasqui.triggers._waiting import wait_job

        return wait_job(source, self.job_id, self.events_after)

    def check_event(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        from airflow_provider_chasqui.triggers._waiting import check_job_event

        check_job_event(event, self.queue_name)
        return hook.queue(self.queue_name).result(self.job_id)

    def poke(self, context: Context) -> bool | PokeReturnValue:
        from airflow_provider_chasqui.triggers._event_follower import JobWaitResult

        self.push_link(context)
        with ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(self.queue_name)
            found = queue.job_status(self.job_id)
            self.log.info("The job %s is %s", self.job_id, found.state)
            if found.state not in ("done", "dead", "unknown"):
                return False
            end = JobWaitResult(self.job_id, found.state, found.reason)
            if found.state == "dead":
                letters = queue.dead_letters(limit=1, newest_first=True, job_ids=[self.job_id])
                end = JobWaitResult.from_dead_letter(
                    self.job_id, letters[0] if letters else None, found.reason
                )
            return PokeReturnValue(True, self.finish(context, hook, end.as_dict()))
