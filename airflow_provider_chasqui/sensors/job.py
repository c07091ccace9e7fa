"""ChasquiJobSensor: wait until a job is done."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_provider_chasqui.core.durations import parse_duration
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.links.job import LINK_XCOM_KEY, ChasquiJobLink, build_page_url
from airflow_provider_chasqui.sensors._base import (
    COUNTS_XCOM_KEY,
    ChasquiSensorBase,
    OnRetryOfSensor,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.queue import Queue
    from airflow_provider_chasqui.triggers._waiting import QueueSource


class ChasquiJobSensor(ChasquiSensorBase):
    """Sensor that waits until a job is done.

    Returns the result of the job, or None if no result is stored. Fails with the error of the job
    if the job dies. A job that does not exist yet is awaited until the timeout of the sensor,
    unless its id is the output of a task.

    The XCom `counts` contains `done` and `dead`, and `missing_results`, which is 1 if the job is
    done and has no stored result: the handler returned None, the result has expired, or the worker
    does not store results. It is also pushed if the job died.

    :param job_id: the id that ChasquiEnqueueOperator returned, or an explicit id. (templated)
    :param queue_name: the queue. Default: the `queue_name` of the connection. (templated)
    :param must_exist: whether to fail with JobNotFound if Redis has no record of the job. Default:
        True if `job_id` is the output of a task (an XComArg), otherwise False.
    :param on_retry: what happens after the job died. "reattach" (default) fails the task without
        its retries, because the job stays dead. With "replay" a retry of the task replays the job
        and waits again.
    :param events_after: the id of an event that is older than the job, so that older events are not
        read. Default: "0-0", which reads all events. (templated)
    :param progress_interval: the time between two log lines about what delays the job: a timedelta,
        a number of seconds, or text such as `30s`. Default: 30 seconds.
    :param deferrable: whether to wait in the triggerer, without a worker slot. Default: the
        `default_deferrable` option of Airflow's section `[operators]`.
    :param start_from_trigger: whether the scheduler defers the task without starting it on a worker
        first. Requires `deferrable` and a `queue_name`. Default: False.
    :param chasqui_conn_id: the id of the Airflow connection. Default: `chasqui_default`.
        (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "job_id", "events_after", "chasqui_conn_id")
    operator_extra_links = (ChasquiJobLink(),)
    stat_name = "job_wait"

    def __init__(
        self,
        *,
        job_id: str,
        queue_name: str | None = None,
        must_exist: bool | None = None,
        on_retry: OnRetryOfSensor = "reattach",
        events_after: str = "0-0",
        progress_interval: timedelta | float | str = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.job_id = job_id
        self.must_exist = not isinstance(job_id, str) if must_exist is None else must_exist
        self._set_on_retry(on_retry)
        self.events_after = events_after
        self.progress_interval = progress_interval
        if self.start_from_trigger:
            self._set_start_trigger(queue_name)

    @property
    def _progress_interval_s(self) -> float:
        return parse_duration(self.progress_interval, "progress_interval").total_seconds()

    def replay_dead_jobs(self, queue: Queue) -> None:
        report = queue.replay_dead_letters(job_ids=[self.job_id])
        if report.affected:
            self.log.info("Replayed the dead job %s", self.job_id)

    def push_link(self, context: Context, queue_name: str) -> None:
        link = build_page_url(self.chasqui_conn_id, queue_name, job=self.job_id)
        context["ti"].xcom_push(key=LINK_XCOM_KEY, value=link)

    def build_trigger(self, queue_name: str, deadline: float | None) -> Any:
        from airflow_provider_chasqui.triggers.job import ChasquiJobTrigger

        return ChasquiJobTrigger(
            queue_name=queue_name,
            job_id=self.job_id,
            events_after=self.events_after,
            must_exist=self.must_exist,
            deadline=deadline,
            progress_interval=self._progress_interval_s,
            chasqui_conn_id=self.chasqui_conn_id,
        )

    def wait(self, source: QueueSource, timeout: float) -> Any:
        from airflow_provider_chasqui.triggers._waiting import wait_job

        return wait_job(
            source,
            self.job_id,
            self.events_after,
            must_exist=self.must_exist,
            timeout=timeout,
            log=self.log.info,
            log_interval=self._progress_interval_s,
        )

    def check_event(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        from airflow_provider_chasqui.triggers._waiting import check_job_event, job_counts

        queue = hook.queue(self.queue_name)
        counts = job_counts({"queue_name": queue.name} | event)
        results = {}
        if counts is not None:
            results = queue.results([self.job_id]) if counts["done"] else {}
            counts["missing_results"] = counts["done"] - len(results)
            context["ti"].xcom_push(key=COUNTS_XCOM_KEY, value=counts)
        check_job_event(event, queue.name)
        if not results:
            self.log.info(
                "The job %s is done and has no stored result: its handler returned None, the "
                "result has expired, or the worker does not store results (--store-results)",
                self.job_id,
            )
        return results.get(self.job_id)

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Return the result of the job if it is finished, otherwise False.

        :param context: the task's context.
        """
        from airflow_provider_chasqui.core.commands.wait import look_at_job
        from airflow_provider_chasqui.core.waiting import JobEnd, Wait, next_state

        with ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(self.queue_name)
            self.push_link(context, queue.name)
            flow = look_at_job(queue.keys, self.job_id, queue.config.group)
            observation, status = queue.client.run_flow(flow)
            # A poke remembers no earlier one, so one search that does not find the job decides.
            wait = Wait(must_exist=self.must_exist, misses=1)
            end = next_state(wait, observation, 0.0)
            if not isinstance(end, JobEnd):
                self.log.info("The state of job %s is %s", self.job_id, status.state)
                return False
            return PokeReturnValue(True, self.finish(context, hook, end.as_dict()))
