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
    """Sensor that waits until a job is done.

    Returns the result of the job, or None if the worker does not store results. Fails with the
    error of the job if the job dies, and with JobNotFound if the job cannot be found.

    :param queue_name: the queue. (templated)
    :param job_id: the id that ChasquiEnqueueOperator returned. (templated)
    :param events_after: the id of an event that is older than the job, so that older events are not
        read. Default: "0-0", which reads all events. (templated)
    :param deferrable: whether to wait in the triggerer, without a worker slot. Default: the
        `default_deferrable` option of Airflow's section `[operators]`.
    :param chasqui_conn_id: the id of the Airflow connection. Default: `chasqui_default`.
        (templated)
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
        """Return the result of the job if it is finished, otherwise False.

        :param context: the task's context.
        """
        from airflow_provider_chasqui.triggers._event_follower import JobWaitResult

        self.push_link(context)
        with ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(self.queue_name)
            status = queue.job_status(self.job_id)
            self.log.info("job: the state of job %s is %s", self.job_id, status.state)
            if status.state not in ("done", "dead", "unknown"):
                return False
            result = JobWaitResult(self.job_id, status.state, status.reason)
            if status.state == "dead":
                dead_letters = queue.dead_letters(limit=1, newest_first=True, job_ids=[self.job_id])
                result = JobWaitResult.from_dead_letter(
                    self.job_id, dead_letters[0] if dead_letters else None, status.reason
                )
            return PokeReturnValue(True, self.finish(context, hook, result.as_dict()))
