"""Enqueueing of a task instance's jobs: once between two clears, however many tries it takes.

This module does not import Airflow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.batch import BatchProgress, batch_job_id, parse_batch_job_id
from airflow_provider_chasqui.core.errors import (
    BatchConflict,
    BatchNotFound,
    EncodeError,
    InvalidArgument,
)
from airflow_provider_chasqui.core.retry import RetryPolicy
from airflow_provider_chasqui.engine.tracing import propagate_trace

if TYPE_CHECKING:
    from airflow_provider_chasqui.core.queue_flows import BatchOptions
    from airflow_provider_chasqui.queue import Queue

OnRetry = Literal["reattach", "replay", "resubmit"]
OnClear = Literal["resend", "reattach"]
OnChange = Literal["resend", "fail", "keep"]

_log = logging.getLogger(__name__)

# Largest assumed difference between the clocks of a producer and of the server.
_MAX_CLOCK_SKEW_MS = 60_000


@dataclass(frozen=True)
class EnqueueHandle:
    """Identity of enqueued jobs: the content of XComs and of trigger events.

    :param queue_name: the queue.
    :param batch_id: the batch, or None for a single job with an explicit id.
    :param job_id: the id of a single job, or None for several jobs.
    :param total: the number of jobs, or None before they are sent.
    """

    queue_name: str
    batch_id: str | None
    job_id: str | None
    total: int | None

    @classmethod
    def from_event(cls, event: dict[str, Any]) -> EnqueueHandle:
        """Return the handle of the jobs in a trigger event.

        :param event: an event of ChasquiJobTrigger or ChasquiBatchTrigger.
        """
        if "batch_id" in event:
            return cls(event["queue_name"], event["batch_id"], None, event["total"])
        position = parse_batch_job_id(event["job_id"])
        batch_id = None if position is None else position.batch_id
        return cls(event["queue_name"], batch_id, event["job_id"], 1)

    def job_ids(self) -> list[str]:
        """Return the ids of all jobs, in the order of their payloads."""
        if self.job_id is not None:
            return [self.job_id]
        return [batch_job_id(self.batch_id or "", 0, index) for index in range(self.total or 0)]

    @property
    def ui_query(self) -> dict[str, str]:
        """The URL query that selects the job or the batch on the Chasqui page."""
        return {"job": self.job_id} if self.job_id is not None else {"batch": self.batch_id or ""}

    @property
    def description(self) -> str:
        """The job or the batch, for log lines and errors."""
        subject = f"job {self.job_id}" if self.job_id is not None else f"batch {self.batch_id}"
        return f"{subject} on the queue {self.queue_name!r}"

    def to_xcom(self) -> Any:
        """Return the task's return value: a job id, or the handle for ChasquiBatchSensor."""
        if self.job_id is not None:
            return self.job_id
        return {"queue_name": self.queue_name, "batch_id": self.batch_id, "total": self.total}


@dataclass(frozen=True)
class EnqueueRequest:
    """Jobs to enqueue: one job with an explicit id, or a batch.

    :param payloads: a function that returns the payloads of the jobs. It is called again if they
        must be sent again.
    :param encoded: whether `payloads` returns chunks of encoded payloads.
    :param batch_id: the id of the batch.
    :param first_use: whether no earlier try of this task instance can have sent a batch with this
        id, although it may exist: the user chose it, and this is the first try.
    :param earlier_batch_ids: the ids before the last clear, newest first.
    :param single: whether there is exactly one payload.
    :param job_id: the explicit id of a single job. Default: None, the jobs are a batch.
    :param dedup_ttl: how long the server remembers the explicit id.
    :param job_name: the name of the jobs.
    :param delay: the delay before the jobs run.
    :param run_at: the time at which the jobs run, instead of `delay`.
    :param retry: the retry policy. Default: the policy of the worker.
    :param source: a text that identifies the producer.
    :param owner: the try of the task. Only the last owner of a batch can cancel it.
    :param on_retry: "replay" replays the dead jobs of an earlier try.
    :param on_clear: "resend" cancels the jobs that were sent before a clear, "reattach" keeps them.
    :param on_change: what happens if an earlier try sent other payloads.
    :param compare_complete: whether to compare the payloads with a batch that is completely sent.
        Otherwise `payloads` is not called for it.
    """

    payloads: Callable[[], Iterable[Any]]
    batch_id: str
    first_use: bool = False
    earlier_batch_ids: tuple[str, ...] = ()
    single: bool = False
    job_id: str | None = None
    dedup_ttl: timedelta | None = None
    job_name: str = ""
    delay: timedelta | None = None
    run_at: datetime | None = None
    retry: RetryPolicy | None = None
    source: str = ""
    owner: str = ""
    on_retry: OnRetry = "reattach"
    on_clear: OnClear = "resend"
    on_change: OnChange = "resend"
    compare_complete: bool = True
    encoded: bool = False


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
    log: Any = _log,
    before_send: Callable[[EnqueueHandle], None] = lambda _: None,
) -> EnqueueOnceResult:
    """Enqueue the jobs unless an earlier try has enqueued them.

    :param queue: the queue.
    :param request: the jobs.
    :param log: the logger of the task. Default: the logger of this module.
    :param before_send: called with the handle before jobs are sent under its id. The total may be
        unknown.
    :return: the handle of the jobs, and whether they are new.
    :raises BatchConflict: if an earlier try enqueued other payloads and `on_change` is "fail".
    :raises EncodeError: if a payload cannot be encoded; the message names the row and the key.
    """
    if request.job_id is not None:
        return _enqueue_job(queue, request, log, before_send)
    return _BatchSender(queue, request, log, before_send).run()


def cancel_enqueued(queue: Queue, handle: EnqueueHandle, owner: str) -> str:
    """Cancel jobs that are unfinished, unless a later try owns them.

    :param queue: the queue.
    :param handle: the jobs.
    :param owner: the try of the task.
    :return: what happened, for the log.
    """
    if handle.batch_id is None:
        return queue.cancel(handle.job_id or "")
    try:
        return queue.cancel_batch(handle.batch_id, owner=owner)
    except BatchNotFound:
        return "nothing was sent"


def _enqueue_job(
    queue: Queue,
    request: EnqueueRequest,
    log: Any,
    before_send: Callable[[EnqueueHandle], None],
) -> EnqueueOnceResult:
    handle = EnqueueHandle(queue.name, None, request.job_id, 1)
    before_send(handle)
    propagate_trace(queue, request.job_id)
    (payload,) = request.payloads()
    events_after = _events_after(current_time_ms())
    added = queue.add(
        payload,
        job_name=request.job_name,
        job_id=request.job_id,
        delay=request.delay,
        run_at=request.run_at,
        retry=request.retry,
        dedup_ttl=request.dedup_ttl,
    )
    if added.created:
        log.info("enqueue: sent %s", handle.description)
        return EnqueueOnceResult(handle, events_after, True)
    log.info("enqueue: %s was sent before; nothing is sent", handle.description)
    return EnqueueOnceResult(handle, "0-0", False)


class _BatchSender:
    """Finds the batch that an earlier try has sent, or sends one."""

    def __init__(
        self,
        queue: Queue,
        request: EnqueueRequest,
        log: Any,
        before_send: Callable[[EnqueueHandle], None],
    ):
        self._queue = queue
        self._request = request
        self._log = log
        self._before_send = before_send

    def run(self) -> EnqueueOnceResult:
        series, generation, progress = self._find_current()
        while True:
            batch_id = generation_id(series, generation)
            handle = self._handle(batch_id, progress.total if progress else None)
            self._before_send(handle)
            try:
                return self._send(handle, progress)
            except BatchConflict as error:
                if progress is None:
                    raise
                self._check_origin(handle, progress, error)
                self._report_change(handle, progress, error)
            if self._request.on_change == "keep":
                return self._reattach(handle, progress)
            self._queue.cancel_batch(batch_id, owner=self._request.owner)
            generation, progress = self._find_usable(series, generation + 1)

    def _check_origin(
        self, handle: EnqueueHandle, progress: BatchProgress, error: BatchConflict
    ) -> None:
        """Raise if another task instance has sent the batch, which must not be cancelled.

        :raises InvalidArgument: if it has.
        """
        request = self._request
        if request.first_use or progress.source not in ("", request.source):
            raise InvalidArgument(
                f"another task instance has sent other payloads as {handle.description} "
                f"({progress.source or 'unknown source'}); use a batch_id per task instance, such "
                "as 'import-{{ ds }}-{{ ti.map_index }}'",
                queue_name=self._queue.name,
            ) from error

    def _report_change(
        self, handle: EnqueueHandle, progress: BatchProgress, error: BatchConflict
    ) -> None:
        """Log that an earlier try sent other payloads.

        :raises BatchConflict: if `on_change` does not allow it.
        """
        match self._request.on_change:
            case "resend":
                action = "its unfinished jobs are cancelled and the new payloads are sent"
            case "keep" if progress.total is not None:
                action = "it is kept, and the new payloads are ignored"
            case _:
                raise BatchConflict(
                    f"an earlier try sent other payloads as {handle.description}: {error.message}; "
                    "return the same payloads on every try, or set on_change='resend'"
                ) from error
        self._log.warning(
            "enqueue: this try has other payloads than %s; %s (on_change=%r)",
            handle.description,
            action,
            self._request.on_change,
        )

    def _find_current(self) -> tuple[str, int, BatchProgress | None]:
        """Return the batch to use as series and generation, and its progress if it exists."""
        series = self._request.batch_id
        generation, progress = self._find_usable(series, 1)
        if progress is not None or generation > 1:
            return series, generation, progress
        for earlier in self._request.earlier_batch_ids:
            if self._request.on_clear == "resend":
                self._cancel_all(earlier)
                continue
            earlier_generation, earlier_progress = self._find_usable(earlier, 1)
            if earlier_progress is not None or earlier_generation > 1:
                return earlier, earlier_generation, earlier_progress
        return series, 1, None

    def _find_usable(self, series: str, generation: int) -> tuple[int, BatchProgress | None]:
        """Return the first generation that is not cancelled, and its progress if it exists."""
        while True:
            batch_id = generation_id(series, generation)
            progress = self._queue.attach_batch(batch_id, self._request.owner)
            if progress is None or not progress.cancelled:
                return generation, progress
            generation += 1

    def _cancel_all(self, name: str) -> None:
        """Cancel every generation of a batch that was sent before the task was cleared."""
        generation = 1
        while True:
            batch_id = generation_id(name, generation)
            try:
                result = self._queue.cancel_batch(batch_id)
            except BatchNotFound:
                return
            if result == "cancelled":
                self._log.info(
                    "enqueue: the task was cleared; cancelled the unfinished jobs of batch %s",
                    batch_id,
                )
            generation += 1

    def _handle(self, batch_id: str, total: int | None) -> EnqueueHandle:
        if self._request.single:
            return EnqueueHandle(self._queue.name, batch_id, batch_job_id(batch_id, 0, 0), 1)
        return EnqueueHandle(self._queue.name, batch_id, None, total)

    def _send(self, handle: EnqueueHandle, progress: BatchProgress | None) -> EnqueueOnceResult:
        complete = progress is not None and progress.total is not None
        if progress is not None and complete and not self._request.compare_complete:
            return self._reattach(handle, progress)
        request, batch_id = self._request, handle.batch_id or ""
        events_after = _events_after(current_time_ms())
        if not complete:
            propagate_trace(self._queue, batch_id=batch_id)
        options: BatchOptions = {
            "job_name": request.job_name,
            "source": request.source,
            "owner": request.owner,
        }
        if request.delay is not None:
            options["delay"] = request.delay
        if request.run_at is not None:
            options["run_at"] = request.run_at
        if request.retry is not None:
            options["retry"] = request.retry
        try:
            add = self._queue.add_encoded_batch if request.encoded else self._queue.add_batch
            batch = add(request.payloads(), batch_id=batch_id, **options)
        except EncodeError as error:
            position = parse_batch_job_id(error.job_id or "")
            if position is None or request.single:
                raise
            raise EncodeError(f"row {position.index}: {error.message}") from error
        handle = replace(handle, total=batch.total)
        if progress is not None and complete:
            return self._reattach(handle, progress)
        self._log.info("enqueue: sent %d payload(s) as %s", batch.total, handle.description)
        if progress is not None and progress.created_at_ms is not None:
            events_after = _events_after(progress.created_at_ms)
        return EnqueueOnceResult(handle, events_after, True)

    def _reattach(self, handle: EnqueueHandle, progress: BatchProgress) -> EnqueueOnceResult:
        self._log.info(
            "enqueue: an earlier try already sent the payload(s) as %s: %d of %d finished, %d dead",
            handle.description,
            progress.processed,
            progress.total,
            progress.dead,
        )
        if self._request.on_retry == "replay" and progress.dead:
            report = self._queue.replay_dead_letters(batch_id=progress.batch_id)
            self._log.info(
                "enqueue: replayed %d of %d dead job(s) of %s",
                report.affected,
                progress.dead,
                handle.description,
            )
        total = progress.total if handle.total is None else handle.total
        events_after = _events_after(progress.created_at_ms or 0)
        return EnqueueOnceResult(replace(handle, total=total), events_after, False)


def generation_id(batch_id: str, generation: int) -> str:
    """Return the id under which a batch is sent again without a clear.

    :param batch_id: the id of the first generation.
    :param generation: the number of the generation, from 1.
    """
    return batch_id if generation == 1 else f"{batch_id}~g{generation}"


def _events_after(time_ms: int) -> str:
    """Return the id of an event that is older than everything that happened after a time."""
    return f"{max(0, time_ms - _MAX_CLOCK_SKEW_MS)}-0"
