"""What a handler may know and say while its job runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from airflow_provider_chasqui.core.job import Entry, Job

Say = Callable[[str, Any], None]


class Context:
    """One run of a job.

    `attempt` counts from 0, crashed runs included. `cancelled` turns true when somebody asked for
    the job to be cancelled, `lost` when another worker has taken the entry over (this process was
    paused for too long): a careful handler then stops.
    """

    __slots__ = ("_deadline", "_reschedule", "_say", "cancelled", "entry_id", "job", "lost")

    def __init__(self, entry: Entry, timeout_s: float | None, say: Say):
        self.job: Job = entry.job
        self.entry_id = entry.id
        self.cancelled = False
        self.lost = False
        self._say = say
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._reschedule: Callable[[float], None] | None = None

    @property
    def attempt(self) -> int:
        return self.job.attempt

    @property
    def seconds_left(self) -> float | None:
        """How long the handler may still run; None if it has no timeout."""
        return None if self._deadline is None else self._deadline - time.monotonic()

    def extend(self, by: timedelta) -> None:
        """Give this run more time than its timeout allows."""
        if self._deadline is None:
            return
        self._deadline += by.total_seconds()
        if self._reschedule is not None:
            self._reschedule(self._deadline)

    def progress(self, value: Any) -> None:
        """Say how far the job is; readers see the last value (`Queue.progress`)."""
        self._say(self.job.id, value)
