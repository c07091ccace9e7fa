"""ChasquiCancelOperator: cancel a batch or a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_chasqui.assets.chasqui import QueueLineage
from airflow_provider_chasqui.core.batch import parse_batch_job_id
from airflow_provider_chasqui.core.errors import BatchNotFound, InvalidArgument
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.links.job import LINK_XCOM_KEY, ChasquiJobLink, build_page_url
from airflow_provider_chasqui.retry_policies import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context


class ChasquiCancelOperator(QueueLineage, BaseOperator):
    """Operator that cancels the unfinished jobs of a batch, or one job.

    Workers drop the jobs that have not started and interrupt those that are running. Cancelled jobs
    are neither done nor dead, and leave no dead letter. Cancelling a batch takes the same time for
    ten jobs and for a million. A cancelled batch stays cancelled.

    Returns a mapping with `queue_name`, `batch_id` or `job_id`, and `result`: "cancelled",
    "already_cancelled", "finished" or "not_found" for a batch; "cancelled" (the job was delayed and
    is deleted) or "requested" (workers are asked to drop or interrupt it) for a job.

    :param batch: the handle that ChasquiEnqueueOperator returned, or a batch id. (templated)
    :param job_id: the id of a job, instead of `batch`. (templated)
    :param queue_name: the queue. Default: the queue of the handle, then the `queue_name` of the
        connection. (templated)
    :param ignore_missing: whether the task succeeds if the batch does not exist or has expired.
        Default: True.
    :param chasqui_conn_id: the id of the Airflow connection. Default: `chasqui_default`.
        (templated)
    """

    template_fields: Sequence[str] = ("batch", "job_id", "queue_name", "chasqui_conn_id")
    operator_extra_links = (ChasquiJobLink(),)
    ui_color = "#f3d6d3"

    def __init__(
        self,
        *,
        batch: Any = None,
        job_id: str | None = None,
        queue_name: str | None = None,
        ignore_missing: bool = True,
        chasqui_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (batch is None) == (job_id is None):
            raise InvalidArgument("pass either batch or job_id")
        self._cancels_batch = batch is not None
        self.batch = batch
        self.job_id = job_id
        self.queue_name = queue_name
        self.ignore_missing = ignore_missing
        self.chasqui_conn_id = chasqui_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Cancel the batch or the job.

        :param context: the task's context.
        :raises BatchNotFound: if the batch does not exist and `ignore_missing` is False.
        """
        with fail_without_retry(), ChasquiHook(self.chasqui_conn_id) as hook:
            target = self._parse_target()
            queue = hook.queue(self.queue_name or target.pop("queue_name", None))
            self.used_queue_name = queue.name
            query = {name.removesuffix("_id"): value for name, value in target.items()}
            link = build_page_url(self.chasqui_conn_id, queue.name, **query)
            context["ti"].xcom_push(key=LINK_XCOM_KEY, value=link)
            result: str
            if "job_id" in target:
                result = queue.cancel(target["job_id"])
            else:
                try:
                    result = queue.cancel_batch(target["batch_id"])
                except BatchNotFound:
                    if not self.ignore_missing:
                        raise
                    result = "not_found"
            self.log.info("cancel: %s on the queue %r: %s", target, queue.name, result)
            return {"queue_name": queue.name, **target, "result": result}

    def _parse_target(self) -> dict[str, str]:
        """Return the batch or the job, and the queue if a handle names it."""
        value = self.batch if self._cancels_batch else self.job_id
        if isinstance(value, str) and value:
            # The output of a task that sent a single payload is the id of a job.
            is_batch = self._cancels_batch and parse_batch_job_id(value) is None
            return {"batch_id" if is_batch else "job_id": value}
        if (
            self._cancels_batch
            and isinstance(value, dict)
            and isinstance(value.get("batch_id"), str)
        ):
            names = ("batch_id", "queue_name")
            return {name: value[name] for name in names if value.get(name)}
        name = "batch" if self._cancels_batch else "job_id"
        raise InvalidArgument(
            f"{name} must be an id{' or a handle' if self._cancels_batch else ''}, not {value!r}"
        )
