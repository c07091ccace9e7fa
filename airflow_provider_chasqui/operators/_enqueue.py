"""Enqueueing of a task instance's jobs: once, however many tries the task needs.

This module does not import Airflow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_chasqui.core.batch import BatchProgress, batch_job_id
from airflow_provider_chasqui.core.errors import BatchConflict, BatchNotFound
from airflow_provider_chasqui.core.retry import RetryPolicy
from airflow_provider_chasqui.engine.tracing import propagate_trace

if TYPE_CHECKING:
    from airflow_provider_chasqui.core.queue_flows import BatchOptions
    from airflow_provider_chasqui.queue import Queue

# Largest assumed difference between the clocks of a producer and of the server.
_MAX_CLOCK_SKEW_MS = 60_000


@dataclass(frozen=True)
class EnqueueHandle:
    """Identity of enqueued jobs: the content of XComs and of trigger events.

    :param queue_name: the queue.
    :param batch_id: the batch, or None for a single job with an explicit id.
    :param job_id: the explicit id of a single job, or None for a batch.
    :param total: the number of jobs.
    """

    queue_name: str
    batch_id: str | None
    job_id: str | None
    total: int

    @classmethod
    def from_event(cls, event: dict[str, Any]) -> EnqueueHandle:
        """Return the handle of the jobs in a trigger event.

        :param event: an event of ChasquiJobTrigger or ChasquiBatchTrigger.
        """
        if "batch_id" in event:
            return cls(event["queue_name"], event["batch_id"], None, event["total"])
        return cls(event["queue_name"], None, event["job_id"], 1)

    @property
    def first_job_id(self) -> str:
        """The id of the only job, or of the first job of the batch."""
        return self.job_id or batch_job_id(self.batch_id or "", 0, 0)

    def job_ids(self) -> list[str]:
        """Return the ids of all jobs, in the order of their payloads."""
        if self.job_id is not None:
            return [self.job_id]
        return [batch_job_id(self.batch_id or "", 0, index) for index in range(self.total)]

    @property
    def ui_query(self) -> dict[str, str]:
        """The URL query that selects the job or the batch on the Chasqui page."""
        if self.job_id is not None or self.total == 1:
            return {"job": self.first_job_id}
        return {"batch": self.batch_id or ""}

    @property
    def description(self) -> str:
        """The job or the batch, for log lines and errors."""
        subject = f"job {self.first_job_id}" if self.total == 1 else f"batch {self.batch_id}"
        return f"{subject} on the queue {self.queue_name!r}"

    def to_xcom(self, payload_kind: str) -> Any:
        """Return the task's return value.

        :param payload_kind: "payload" for the id of one job, "payloads" for a list of ids, "batch"
            for the mapping that ChasquiBatchSensor accepts.
        """
        if payload_kind == "payload":
            return self.first_job_id
        if payload_kind == "payloads":
            return self.job_ids()
        return {"queue_name": self.queue_name, "batch_id": self.batch_id, "total": self.total}


@dataclass(frozen=True)
class EnqueueRequest:
    """Jobs to enqueue: one job with an explicit id, or a batch.

    :param payloads: the payloads. With `job_id`, only the first one is enqueued.
    :param batch_id: the id of the batch. Ignored if `job_id` is given.
    :param job_id: the explicit id of a single job.
    :param dedup_ttl: how long the server remembers `job_id` and ignores another job with it.
    :param job_name: the name of the jobs.
    :param delay: the delay of the jobs.
    :param run_at: the time before which the jobs do not run.
    :param retry: the retry policy of the jobs, or None for the worker's default.
    :param source: the origin of the batch, as shown on the Chasqui page.
    """

    payloads: Sequence[Any]
    batch_id: str
    job_id: str | None = None
    dedup_ttl: timedelta = timedelta(days=7)
    job_name: str = ""
    delay: timedelta | None = None
    run_at: datetime | None = None
    retry: RetryPolicy | None = None
    source: str = ""

    def handle_for(self, queue_name: str) -> EnqueueHandle:
        """Return the handle that the jobs have on a queue.

        :param queue_name: the queue.
        """
        batch_id = None if self.job_id is not None else self.batch_id
        return EnqueueHandle(queue_name, batch_id, self.job_id, len(self.payloads))


@dataclass(frozen=True)
class EnqueueOnceResult:
    """Result of `enqueue_once`.

    :param handle: the identity of the jobs.
    :param events_after: the id of an event that is older than every event of the jobs.
    :param created: whether this call enqueued the jobs. False if an earlier try did.
    """

    handle: EnqueueHandle
    events_after: str
    created: bool


def enqueue_once(
    queue: Queue,
    request: EnqueueRequest,
    *,
    replay_dead: bool = False,
    log: Callable[..., None] = lambda *_: None,
) -> EnqueueOnceResult:
    """Enqueue the jobs unless an earlier try has enqueued them.

    :param queue: the queue.
    :param request: the jobs.
    :param replay_dead: whether to replay the dead jobs of the batch that an earlier try enqueued.
    :param log: the function that receives log lines, such as `logger.info`.
    :return: the handle of the jobs, and whether they are new.
    :raises BatchConflict: if an earlier try enqueued another number of payloads.
    """
    # Read the end of the event stream first, so that no completion event is missed.
    last_event_id = queue.last_event_id()
    propagate_trace(queue, request.job_id, batch_id=None if request.job_id else request.batch_id)
    enqueue = _enqueue_job if request.job_id else _enqueue_batch
    result = enqueue(queue, request, last_event_id)
    description = result.handle.description
    if result.created:
        log("enqueue: sent %d payload(s) as %s", len(request.payloads), description)
    else:
        log("enqueue: an earlier try already sent the payload(s) as %s", description)
    if replay_dead and not result.created and result.handle.batch_id:
        report = queue.replay_dead_letters(batch_id=result.handle.batch_id)
        log("enqueue: replayed %d dead job(s) of %s", report.affected, description)
    return result


def _enqueue_job(queue: Queue, request: EnqueueRequest, last_event_id: str) -> EnqueueOnceResult:
    added = queue.add(
        request.payloads[0],
        job_name=request.job_name,
        job_id=request.job_id,
        delay=request.delay,
        run_at=request.run_at,
        retry=request.retry,
        dedup_ttl=request.dedup_ttl,
    )
    events_after = last_event_id if added.created else "0-0"
    return EnqueueOnceResult(request.handle_for(queue.name), events_after, added.created)


def _enqueue_batch(queue: Queue, request: EnqueueRequest, last_event_id: str) -> EnqueueOnceResult:
    handle = request.handle_for(queue.name)
    previous = _batch_progress(queue, request.batch_id)
    if previous is None or previous.total is None:
        options: BatchOptions = {"job_name": request.job_name, "source": request.source}
        if request.delay is not None:
            options["delay"] = request.delay
        if request.run_at is not None:
            options["run_at"] = request.run_at
        if request.retry is not None:
            options["retry"] = request.retry
        queue.add_batch(request.payloads, batch_id=request.batch_id, **options)
    elif previous.total != len(request.payloads):
        raise BatchConflict(
            f"an earlier try sent {previous.total} jobs, this one has {len(request.payloads)}; "
            "return the same payloads on every try, or set on_retry='resubmit'",
            queue_name=queue.name,
        )
    if previous is None or previous.created_at_ms is None:
        return EnqueueOnceResult(handle, last_event_id, True)
    events_after_ms = max(0, previous.created_at_ms - _MAX_CLOCK_SKEW_MS)
    return EnqueueOnceResult(handle, f"{events_after_ms}-0", previous.total is None)


def _batch_progress(queue: Queue, batch_id: str) -> BatchProgress | None:
    try:
        return queue.batch_progress(batch_id)
    except BatchNotFound:
        return None
