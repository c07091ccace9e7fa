"""What follows from how a run ended: done, run again, or dead; and what is told of it."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow_provider_chasqui.core.codec import encode_job
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.event import (
    event_fields,
    packed_active,
    packed_completed,
    packed_run,
)
from airflow_provider_chasqui.core.job import Entry, Rejected
from airflow_provider_chasqui.core.ops.delivery import Burial
from airflow_provider_chasqui.core.outcome import Retry, Snooze, Unrecoverable
from airflow_provider_chasqui.engine.context import Run
from airflow_provider_chasqui.engine.desk import Desk
from airflow_provider_chasqui.engine.settler import Settler

log = logging.getLogger("chasqui")

# Entry, what the handler returned or raised, when it began and when it ended (perf_counter).
QuickRun = tuple[Entry, Any, float, float]
# What a handler returns to have its job run again.
LATER = (Snooze, Retry)

_ERROR_LENGTH = 2000
_MS = timedelta(milliseconds=1)


class Verdict:
    """Judges runs by the budget and hands the outcome to the settler.

    A job's attempt counts every run that was started: failed ones are in the envelope, crashed
    ones in the delivery count of its entry, and the reader adds the two.
    """

    def __init__(self, desk: Desk, settler: Settler):
        self._desk = desk
        self._settler = settler
        self._retry = desk.config.retry

    def begins(self, run: Run) -> None:
        """A run starts."""
        self._desk.started(run)
        if not self._settler.events_on:
            return
        job = run.entry.job
        event = packed_active(job.id, self._desk.clock(), job.name, job.attempt + 1)
        self._settler.tell_packed(event)

    def returned_at_once(self, runs: Sequence[QuickRun]) -> None:
        """Handlers returned a result without ever waiting.

        They are judged together, and the begin of each is told with its end: the dearest part of
        such a run was to write down, one by one, what became of it.
        """
        desk, settler = self._desk, self._settler
        self._count(runs, ok=True)
        settler.done_all([(entry, value) for entry, value, _, _ in runs])
        if not settler.events_on:
            return
        now_ms, now = desk.clock(), time.perf_counter()
        settler.tell_packed(*[
            packed_run(
                (job := entry.job).id, job.name, job.attempt + 1,
                now_ms - int((now - ended) * 1e3), int((ended - started) * 1e6),
            )
            for entry, _, started, ended in runs
        ])  # fmt: skip

    def returned(self, run: Run, value: Any) -> None:
        """The handler returned."""
        if isinstance(value, Snooze):
            self._ended(run)
            attempt = run.entry.job.attempt
            self._settler.park(run.entry, attempt, value.delay // _MS, failed=False)
        elif isinstance(value, Retry):
            seconds = self._ended(run)
            self._desk.metrics.ran(run.entry.job.name, seconds, ok=False)
            self._failed(run.entry, seconds, value.reason, value.reason, value.after // _MS)
        else:
            self._done(run, value)

    def raised(self, run: Run, error: BaseException) -> None:
        """The handler raised."""
        seconds = self._ended(run)
        self._desk.metrics.ran(run.entry.job.name, seconds, ok=False)
        self._judge_error(run.entry, seconds, error)

    def raised_at_once(self, runs: Sequence[QuickRun]) -> None:
        """Handlers raised without ever having waited."""
        self._count(runs, ok=False)
        for entry, error, started, ended in runs:
            seconds = ended - started
            if self._settler.events_on:
                job, began_ms = entry.job, self._desk.clock() - int(seconds * 1e3)
                event = packed_active(job.id, began_ms, job.name, job.attempt + 1)
                self._settler.tell_packed(event)
            self._judge_error(entry, seconds, error)

    def _count(self, runs: Sequence[QuickRun], *, ok: bool) -> None:
        spans: dict[str, list[float]] = {}
        for entry, _, started, ended in runs:
            spans.setdefault(entry.job.name, []).append(ended - started)
        for name, seconds in spans.items():
            self._desk.metrics.all_ran(name, seconds, ok)
            self._desk.finished(sum(seconds), len(seconds))

    def _judge_error(self, entry: Entry, seconds: float, error: BaseException) -> None:
        said = error.message if isinstance(error, DecodeError) else _said(error)
        verdict = "unrecoverable" if isinstance(error, Unrecoverable) else ""
        self._failed(entry, seconds, said, f"{type(error).__name__}: {said}", None, verdict)

    def cancelled(self, run: Run) -> None:
        """The job was cancelled while it ran or before it began."""
        entry, job = run.entry, run.entry.job
        self._ended(run)
        self._settler.cancelled(entry)
        now_ms, attempt = self._desk.clock(), job.attempt + 1
        for name in ("failed", "dlq"):
            extras = {"attempt": attempt, "reason": "cancelled"}
            self._settler.tell(event_fields(name, job.id, now_ms, job.name, **extras))

    def dropped(self, entry: Entry) -> None:
        """The entry was lost or cancelled while it waited for a worker."""
        if entry.id in self._desk.cancelled:
            self.cancelled(Run(entry, None))
        else:  # it runs elsewhere
            self._desk.finished()
            self._desk.settled([entry.id])

    def interrupted(self, run: Run) -> None:
        """The run was cut off by the shutdown: hand it back; the run counts."""
        self._ended(run)
        self._settler.release(run.entry, run.entry.job.attempt + 1)

    def unstarted(self, entry: Entry) -> None:
        """The entry was read, but not begun before the shutdown."""
        self._desk.finished()
        self._settler.release(entry, entry.job.attempt)

    def rejected(self, entry: Rejected) -> None:
        """The entry cannot become a job."""
        burial = Burial(
            entry.id, entry.raw, entry.name, entry.reason, entry.detail,
            error=entry.detail, attempts=0, failed_at_ms=self._desk.clock(),
        )  # fmt: skip
        self._settler.bury(burial, entry.deliveries)

    def exhausted(self, entry: Entry) -> None:
        """The budget was used up by runs that crashed."""
        error = "every run the job was allowed crashed its worker or was cut off"
        self._bury(entry, "retries_exhausted", error, entry.job.attempt)

    def _done(self, run: Run, value: Any) -> None:
        seconds = self._ended(run)
        job = run.entry.job
        self._desk.metrics.ran(job.name, seconds, ok=True)
        self._settler.done(run.entry, value)
        if not self._settler.events_on:
            return
        event = packed_completed(
            job.id, self._desk.clock(), job.name, job.attempt + 1, int(seconds * 1e6)
        )
        self._settler.tell_packed(event)

    def _failed(
        self, entry: Entry, seconds: float, reason: str, error: str, wait_ms: int | None,
        verdict: str = "",
    ) -> None:  # fmt: skip
        job = entry.job
        if self._settler.events_on:
            self._settler.tell(
                event_fields(
                    "failed", job.id, self._desk.clock(), job.name,
                    attempt=job.attempt + 1, reason=reason[:_ERROR_LENGTH],
                    duration_us=int(seconds * 1e6),
                )
            )  # fmt: skip
        runs = job.attempt + 1
        if verdict or runs >= self._retry.attempts(job.retry):
            often = "1 run" if runs == 1 else f"{runs} runs"
            log.info("job %s (%s) is dead after %s: %s", job.id, job.name or "-", often, error)
            self._bury(entry, verdict or "retries_exhausted", error, runs)
            return
        if wait_ms is None:
            wait_ms = self._retry.wait_ms(job.retry, runs, random.random())
        self._desk.metrics.backs_off(job.name, wait_ms / 1000)
        self._settler.park(entry, runs, wait_ms, failed=True)

    def _bury(self, entry: Entry, reason: str, error: str, runs: int) -> None:
        job = entry.job
        burial = Burial(
            entry.id, encode_job(job), job.name, reason,
            error=error[:_ERROR_LENGTH], attempts=runs, failed_at_ms=self._desk.clock(),
            job_id=job.id,
        )  # fmt: skip
        self._settler.bury(burial, runs)

    def _ended(self, run: Run) -> float:
        seconds = time.perf_counter() - run.started
        self._desk.running.pop(run.entry.id, None)
        self._desk.finished(seconds)
        return seconds


def _said(error: BaseException) -> str:
    """The text of a handler's error, which may be of a class that cannot say it."""
    try:
        return str(error)
    except Exception:
        return "(its text cannot be shown)"
