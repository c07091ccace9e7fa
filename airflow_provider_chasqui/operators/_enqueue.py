"""Sending what a task instance hands off: once, and found again by its next try."""

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

# The clocks of a producer and of the server may differ by this much.
_MAX_CLOCK_SKEW_MS = 60_000


@dataclass(frozen=True)
class EnqueueHandle:
    """What was sent, as XCom and a deferral carry it."""

    queue_name: str
    batch_id: str | None
    job_id: str | None
    total: int

    @classmethod
    def from_event(cls, event: dict[str, Any]) -> EnqueueHandle:
        """Return what an event of a trigger speaks of."""
        if "batch_id" in event:
            return cls(event["queue_name"], event["batch_id"], None, event["total"])
        return cls(event["queue_name"], None, event["job_id"], 1)

    @property
    def first_job_id(self) -> str:
        return self.job_id or batch_job_id(self.batch_id or "", 0, 0)

    def job_ids(self) -> list[str]:
        if self.job_id is not None:
            return [self.job_id]
        return [batch_job_id(self.batch_id or "", 0, index) for index in range(self.total)]

    @property
    def ui_query(self) -> dict[str, str]:
        """What of it is shown on the Chasqui page."""
        one = self.job_id is not None or self.total == 1
        return {"job": self.first_job_id} if one else {"batch": self.batch_id or ""}

    @property
    def description(self) -> str:
        what = f"job {self.first_job_id}" if self.total == 1 else f"batch {self.batch_id}"
        return f"{what} on the queue {self.queue_name!r}"

    def to_xcom(self, payload_kind: str) -> Any:
        """What the task returns: an id, ids, or the handle of a batch."""
        if payload_kind == "payload":
            return self.first_job_id
        if payload_kind == "payloads":
            return self.job_ids()
        return {"queue_name": self.queue_name, "batch_id": self.batch_id, "total": self.total}


@dataclass(frozen=True)
class EnqueueRequest:
    """What is to be sent. With a `job_id` it is one job under that id, else a batch."""

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
        batch_id = None if self.job_id is not None else self.batch_id
        return EnqueueHandle(queue_name, batch_id, self.job_id, len(self.payloads))


@dataclass(frozen=True)
class EnqueueOnceResult:
    """What was sent, by this try or one before, and where to follow the events from."""

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
    """Send the order unless a try before this one has; with `replay`, put its dead jobs back."""
    # Taken before anything is sent, so that no end can fall in front of it.
    tail = queue.last_event_id()
    propagate_trace(queue, request.job_id, batch_id=None if request.job_id else request.batch_id)
    sent = (
        _enqueue_job(queue, request, tail)
        if request.job_id
        else _enqueue_batch(queue, request, tail)
    )
    verb = "Sent" if sent.created else "Found as sent by an earlier try:"
    log("%s %d payload(s) as %s", verb, len(request.payloads), sent.handle.description)
    if replay_dead and not sent.created and sent.handle.batch_id:
        report = queue.replay_dead_letters(batch_id=sent.handle.batch_id)
        log("Put %d dead job(s) of it back on the queue", report.affected)
    return sent


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
    return EnqueueOnceResult(
        request.handle_for(queue.name), last_event_id if added.created else "0-0", added.created
    )


def _enqueue_batch(queue: Queue, request: EnqueueRequest, last_event_id: str) -> EnqueueOnceResult:
    handle = request.handle_for(queue.name)
    before = _batch_progress(queue, request.batch_id)
    if before is None or before.total is None:
        wishes: BatchOptions = {"job_name": request.job_name, "source": request.source}
        if request.delay is not None:
            wishes["delay"] = request.delay
        if request.run_at is not None:
            wishes["run_at"] = request.run_at
        if request.retry is not None:
            wishes["retry"] = request.retry
        queue.add_batch(request.payloads, batch_id=request.batch_id, **wishes)
    elif before.total != len(request.payloads):
        raise BatchConflict(
            f"an earlier try sent {before.total} jobs, this one has {len(request.payloads)}; give "
            "the same payloads on every try, or set on_retry='resubmit'",
            queue_name=queue.name,
        )
    if before is None or before.created_at_ms is None:
        return EnqueueOnceResult(handle, last_event_id, True)
    return EnqueueOnceResult(
        handle, f"{max(0, before.created_at_ms - _MAX_CLOCK_SKEW_MS)}-0", before.total is None
    )


def _batch_progress(queue: Queue, batch_id: str) -> BatchProgress | None:
    try:
        return queue.batch_progress(batch_id)
    except BatchNotFound:
        return None
