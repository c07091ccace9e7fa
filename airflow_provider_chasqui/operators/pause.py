"""Operators that pause and resume a queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_chasqui.assets.chasqui import QueueLineage
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook

if TYPE_CHECKING:
    from airflow.sdk import Context


class ChasquiPauseOperator(QueueLineage, BaseOperator):
    """Pause a queue, or the jobs of one name, until it is resumed.

    Workers notice it within about a second: they start no further jobs, and running ones end.
    Enqueueing, delayed jobs and repeatable jobs go on. All parameters are templated.

    :param queue_name: the queue. Default: the queue of the connection.
    :param job_name: pause only the jobs of this name. Default: the whole queue.
    :param chasqui_conn_id: the Airflow connection.
    """

    template_fields: Sequence[str] = ("queue_name", "job_name", "chasqui_conn_id")
    ui_color = "#f0e6d2"

    def __init__(
        self,
        *,
        queue_name: str | None = None,
        job_name: str | None = None,
        chasqui_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.job_name = job_name
        self.chasqui_conn_id = chasqui_conn_id

    def execute(self, context: Context) -> None:
        """Pause the queue or the job name.

        :param context: the task's context.
        """
        with ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(self.queue_name)
            queue.pause(self.job_name)
            self.log.info("Paused %s", _describe(queue.name, self.job_name))


class ChasquiResumeOperator(ChasquiPauseOperator):
    """End the pause of a queue, or of the jobs of one name. All parameters are templated.

    :param queue_name: the queue. Default: the queue of the connection.
    :param job_name: resume the jobs of this name. Default: the queue; job names that were paused
        stay paused.
    :param chasqui_conn_id: the Airflow connection.
    """

    def execute(self, context: Context) -> None:
        """Resume the queue or the job name.

        :param context: the task's context.
        """
        with ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(self.queue_name)
            queue.resume(self.job_name)
            self.log.info("Resumed %s", _describe(queue.name, self.job_name))


def _describe(queue_name: str, job_name: str | None) -> str:
    if job_name is None:
        return f"queue {queue_name!r}"
    return f"the jobs named {job_name!r} of queue {queue_name!r}"
