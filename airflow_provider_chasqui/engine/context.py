"""One run of a job: what the engine keeps of it, and what its handler may know and say."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from airflow_provider_chasqui.core.job import Job, StreamEntry
from airflow_provider_chasqui.core.payload import encode_payload

ProgressCallback = Callable[[str, bytes], None]


class Run:
    """An entry while its handler runs.

    `cancelled` is set before the engine interrupts the handler; `on_extend` hears of it when the
    handler asks for more time.
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
    def time_remaining(self) -> float | None:
        return None if self.deadline is None else self.deadline - time.monotonic()

    def timeout_error(self) -> TimeoutError:
        return TimeoutError(f"the handler ran for {time.perf_counter() - self.started:.3g} s")


class Context:
    """What a handler that takes (job, context) learns of its run.

    `attempt` counts from 0, crashed runs included. `cancelled` turns true when somebody asked for
    the job to be cancelled, `lost` when another worker has taken the entry over (this process was
    paused for too long): a careful handler then stops.
    """

    __slots__ = ("_report_progress", "_run")

    def __init__(self, run: Run, report_progress: ProgressCallback):
        self._run = run
        self._report_progress = report_progress

    @property
    def job(self) -> Job:
        return self._run.entry.job

    @property
    def entry_id(self) -> str:
        return self._run.entry.id

    @property
    def attempt(self) -> int:
        return self._run.entry.job.attempt

    @property
    def cancelled(self) -> bool:
        return self._run.cancelled

    @property
    def claim_lost(self) -> bool:
        return self._run.claim_lost

    @property
    def time_remaining(self) -> float | None:
        """How long the handler may still run; None if it has no timeout."""
        return self._run.time_remaining

    def extend(self, by: timedelta) -> None:
        """Give this run more time than its timeout allows."""
        run = self._run
        if run.deadline is not None:
            run.deadline += by.total_seconds()
            if run.on_extend is not None:
                run.on_extend()

    def progress(self, value: Any) -> None:
        """Say how far the job is; readers see the last value (`Queue.progress`).

        Raises EncodeError for a value that MessagePack cannot hold.
        """
        self._report_progress(self.job.id, encode_payload(value))
