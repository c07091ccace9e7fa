"""Sending what a task instance hands off: once, and found again by its next try."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_chasqui.core.batch import BatchProgress, job_id
from airflow_provider_chasqui.core.errors import BatchConflict, UnknownBatch
from airflow_provider_chasqui.core.policy import RetryPolicy
from airflow_provider_chasqui.engine.tracing import carry

if TYPE_CHECKING:
    from airflow_provider_chasqui.core.plan import JobOptions
    from airflow_provider_chasqui.queue import Queue

# The clocks of a producer and of the server may differ by this much.
_SKEW_MS = 60_000


@dataclass(frozen=True)
class Handle:
    """What was sent, as XCom and a deferral carry it."""

    queue_name: str
    batch_id: str | None
    job_id: str | None
    total: int

    @classmethod
    def of(cls, event: dict[str, Any]) -> Handle:
        """Return what an event of a trigger speaks of."""
        if "batch_id" in event:
            return cls(event["queue_name"], event["batch_id"], None, event["total"])
        return cls(event["queue_name"], None, event["job_id"], 1)

    @property
    def first_job_id(self) -> str:
        return self.job_id or job_id(self.batch_id or "", 0, 0)

    def job_ids(self) -> list[str]:
        if self.job_id is not None:
            return [self.job_id]
        return [job_id(self.batch_id or "", 0, index) for index in range(self.total)]

    @property
    def place(self) -> dict[str, str]:
        """What of it is shown on the Chasqui page."""
        one = self.job_id is not None or self.total == 1
        return {"job": self.first_job_id} if one else {"batch": self.batch_id or ""}

    @property
    def words(self) -> str:
        what = f"job {self.first_job_id}" if self.total == 1 else f"batch {self.batch_id}"
        return f"{what} on the queue {self.queue_name!r}"

    def returned(self, kind: str) -> Any:
        """What the task returns: an id, ids, or the handle of a batch."""
        if kind == "payload":
            return self.first_job_id
        if kind == "payloads":
            return self.job_ids()
        return {"queue_name": self.queue_name, "batch_id": self.batch_id, "total": self.total}


@dataclass(frozen=True)
class Order:
    """What is to be sent. With a `job_id` it is one job under that id, else a batch."""

    payloads: Sequence[Any]
    batch_id: str
    job_id: str | None = None
    unique_for: timedelta = timedelta(days=7)
    name: str = ""
    delay: timedelta | None = None
    at: datetime | None = None
    retry: RetryPolicy | None = None
    source: str = ""

    def handle(self, queue_name: str) -> Handle:
        batch_id = None if self.job_id is not None else self.batch_id
        return Handle(queue_name, batch_id, self.job_id, len(self.payloads))


@dataclass(frozen=True)
class Sent:
    """What was sent, by this try or one before, and where to follow the events from."""

    handle: Handle
    since: str
    fresh: bool


def send(
    queue: Queue, order: Order, *, replay: bool = False, say: Callable[..., None] = lambda *_: None
) -> Sent:
    """Send the order unless a try before this one has; with `replay`, put its dead jobs back."""
    # Taken before anything is sent, so that no end can fall in front of it.
    tail = queue.events_tail()
    carry(queue, order.job_id, batch_id=None if order.job_id else order.batch_id)
    sent = _send_job(queue, order, tail) if order.job_id else _send_batch(queue, order, tail)
    verb = "Sent" if sent.fresh else "Found as sent by an earlier try:"
    say("%s %d payload(s) as %s", verb, len(order.payloads), sent.handle.words)
    if replay and not sent.fresh and sent.handle.batch_id:
        report = queue.replay(batch=sent.handle.batch_id)
        say("Put %d dead job(s) of it back on the queue", report.moved)
    return sent


def _send_job(queue: Queue, order: Order, tail: str) -> Sent:
    added = queue.add(
        order.payloads[0],
        name=order.name,
        id=order.job_id,
        delay=order.delay,
        at=order.at,
        retry=order.retry,
        unique=order.unique_for,
    )
    return Sent(order.handle(queue.name), tail if added.fresh else "0-0", added.fresh)


def _send_batch(queue: Queue, order: Order, tail: str) -> Sent:
    handle = order.handle(queue.name)
    before = _progress(queue, order.batch_id)
    if before is None or before.total is None:
        wishes: JobOptions = {"name": order.name, "source": order.source}
        if order.delay is not None:
            wishes["delay"] = order.delay
        if order.at is not None:
            wishes["at"] = order.at
        if order.retry is not None:
            wishes["retry"] = order.retry
        queue.add_batch(order.payloads, batch_id=order.batch_id, **wishes)
    elif before.total != len(order.payloads):
        raise BatchConflict(
            f"an earlier try sent {before.total} jobs, this one has {len(order.payloads)}; give "
            "the same payloads on every try, or set on_retry='resubmit'",
            queue=queue.name,
        )
    if before is None or before.created_at_ms is None:
        return Sent(handle, tail, True)
    return Sent(handle, f"{max(0, before.created_at_ms - _SKEW_MS)}-0", before.total is None)


def _progress(queue: Queue, batch_id: str) -> BatchProgress | None:
    try:
        return queue.batch(batch_id)
    except UnknownBatch:
        return None
