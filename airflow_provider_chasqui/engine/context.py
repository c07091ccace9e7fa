"""One run of a job: the engine's record of it (`Run`) and the handler's view of it (`Context`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_chasqui.core.job import Job, StreamEntry
from airflow_provider_chasqui.core.payload import encode_payload

if TYPE_CHECKING:
    from airflow_provider_chasqui.queue_async import AsyncQueue

ProgressCallback = Callable[[str, bytes], None]

# The queue of the worker that runs the current handler; None outside of handlers.
worker_queue: ContextVar[AsyncQueue | None] = ContextVar("chasqui_worker_queue", default=None)


class Run:
    """An entry while its handler runs.

    `cancelled` is set before the engine calls `interrupt`. `on_extend` is called when the handler
    extends its timeout. `started` is a `time.perf_counter()` value, `deadline` a
    `time.monotonic()` value.
    """

    __slots__ = (
        "cancelled",
        "claim_lost",
        "deadline",
        "entry",
        "interrupt",
        "on_extend",
        "started",
    )

    def __init__(self, entry: StreamEntry, timeout_s: float | None, started: float | None = None):
        self.entry = entry
        self.started = time.perf_counter() if started is None else started
        self.deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.cancelled = False
        self.claim_lost = False
        self.interrupt: Callable[[], Any] | None = None
        self.on_extend: Callable[[], Any] | None = None

    @property
    def remaining_s(self) -> float | None:
        """The time until the deadline in seconds, or None without a timeout."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def timeout_error(self) -> TimeoutError:
        """Return the error of a handler that exceeded its timeout."""
        return TimeoutError(
            f"the handler timed out after {time.perf_counter() - self.started:.3g} s"
        )


class Context:
    """The run that a handler with the parameters (job, context) belongs to."""

    __slots__ = ("_report_progress", "_run")

    def __init__(self, run: Run, report_progress: ProgressCallback):
        self._run = run
        self._report_progress = report_progress

    @property
    def job(self) -> Job:
        """The job that runs, the same object as the handler's first argument."""
        return self._run.entry.job

    @property
    def entry_id(self) -> str:
        """The id of the job's entry in the queue's stream."""
        return self._run.entry.id

    @property
    def attempt(self) -> int:
        """The number of attempts before this one: 0 in the first run, crashed runs included.

        This is `job.attempt`, counted from 0 as ChasquiMQ does in the envelope. Events, log lines
        and dead letters count from 1, so the first run is attempt 1 there.
        """
        return self._run.entry.job.attempt

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled while it runs.

        The engine also interrupts the handler. A handler that catches the interruption can check
        this property to find the cause.
        """
        return self._run.cancelled

    @property
    def claim_lost(self) -> bool:
        """Whether this worker no longer owns the job's entry.

        Another worker has claimed the entry because its claim was not renewed within
        `claim_after` (this process was paused or its event loop was blocked), or the entry was
        deleted. The job may be running a second time, so a careful handler stops.
        """
        return self._run.claim_lost

    @property
    def time_remaining(self) -> timedelta | None:
        """The time until the handler's timeout, negative after it; None if it has no timeout."""
        remaining_s = self._run.remaining_s
        return None if remaining_s is None else timedelta(seconds=remaining_s)

    def extend(self, by: timedelta) -> None:
        """Extend the timeout of this run. Does nothing if the handler has no timeout.

        :param by: the time to add.
        """
        run = self._run
        if run.deadline is not None:
            run.deadline += by.total_seconds()
            if run.on_extend is not None:
                run.on_extend()

    def progress(self, value: Any) -> None:
        """Store the progress of the job. `Queue.progress` returns the latest value.

        :param value: any value that MessagePack can encode.
        :raises EncodeError: if MessagePack cannot encode the value.
        """
        self._report_progress(self.job.id, encode_payload(value))
