"""What follows from how a run ended: done, run again, or dead; and what is told of it."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow_provider_chasqui.core.codec import encode_job
from airflow_provider_chasqui.core.commands.consumer_group import NewDeadLetter
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.event import (
    encode_active,
    encode_completed,
    encode_run_events,
    event_fields,
)
from airflow_provider_chasqui.core.job import InvalidEntry, StreamEntry
from airflow_provider_chasqui.core.outcome import Retry, Snooze, Unrecoverable
from airflow_provider_chasqui.engine.consumer_state import ConsumerState
from airflow_provider_chasqui.engine.context import Run
from airflow_provider_chasqui.engine.outcome_writer import OutcomeWriter

log = logging.getLogger("chasqui")

# Entry, what the handler returned or raised, when it began and when it ended (perf_counter).
InlineRun = tuple[StreamEntry, Any, float, float]
# What a handler returns to have its job run again.
RESCHEDULE_TYPES = (Snooze, Retry)

_MAX_ERROR_LENGTH = 2000
_MS = timedelta(milliseconds=1)


class OutcomeHandler:
    """Judges runs by the budget and hands the outcome to the settler.

    A job's attempt counts every run that was started: failed ones are in the envelope, crashed
    ones in the delivery count of its entry, and the reader adds the two.
    """

    def __init__(self, state: ConsumerState, writer: OutcomeWriter):
        self._state = state
        self._writer = writer
        self._retry = state.config.retry

    def run_started(self, run: Run) -> None:
        """A run starts."""
        self._state.run_started(run)
        if not self._writer.events_enabled:
            return
        job = run.entry.job
        event = encode_active(job.id, self._state.clock(), job.name, job.attempt + 1)
        self._writer.emit_encoded(event)

    def inline_runs_returned(self, runs: Sequence[InlineRun]) -> None:
        """Handlers returned a result without ever waiting.

        They are judged together, and the begin of each is told with its end: the dearest part of
        such a run was to write down, one by one, what became of it.
        """
        desk, settler = self._state, self._writer
        self._record_metrics(runs, ok=True)
        settler.complete_many([(entry, value) for entry, value, _, _ in runs])
        if not settler.events_enabled:
            return
        now_ms, now = desk.clock(), time.perf_counter()
        settler.emit_encoded(*[
            encode_run_events(
                (job := entry.job).id, job.name, job.attempt + 1,
                now_ms - int((now - ended) * 1e3), int((ended - started) * 1e6),
            )
            for entry, _, started, ended in runs
        ])  # fmt: skip

    def run_returned(self, run: Run, value: Any) -> None:
        """The handler returned."""
        if isinstance(value, Snooze):
            self._finish(run)
            attempt = run.entry.job.attempt
            self._writer.reschedule(run.entry, attempt, value.delay // _MS, failed=False)
        elif isinstance(value, Retry):
            seconds = self._finish(run)
            self._state.metrics.record_run(run.entry.job.name, seconds, ok=False)
            self._fail(run.entry, seconds, value.reason, value.reason, value.delay // _MS)
        else:
            self._complete(run, value)

    def run_raised(self, run: Run, error: BaseException) -> None:
        """The handler raised."""
        seconds = self._finish(run)
        self._state.metrics.record_run(run.entry.job.name, seconds, ok=False)
        self._handle_exception(run.entry, seconds, error)

    def inline_runs_raised(self, runs: Sequence[InlineRun]) -> None:
        """Handlers raised without ever having waited."""
        self._record_metrics(runs, ok=False)
        for entry, error, started, ended in runs:
            seconds = ended - started
            if self._writer.events_enabled:
                job, began_ms = entry.job, self._state.clock() - int(seconds * 1e3)
                event = encode_active(job.id, began_ms, job.name, job.attempt + 1)
                self._writer.emit_encoded(event)
            self._handle_exception(entry, seconds, error)

    def _record_metrics(self, runs: Sequence[InlineRun], *, ok: bool) -> None:
        spans: dict[str, list[float]] = {}
        for entry, _, started, ended in runs:
            spans.setdefault(entry.job.name, []).append(ended - started)
        for name, seconds in spans.items():
            self._state.metrics.record_runs(name, seconds, ok)
            self._state.run_finished(sum(seconds), len(seconds))

    def _handle_exception(self, entry: StreamEntry, seconds: float, error: BaseException) -> None:
        said = error.message if isinstance(error, DecodeError) else _safe_str(error)
        verdict = "unrecoverable" if isinstance(error, Unrecoverable) else ""
        self._fail(entry, seconds, said, f"{type(error).__name__}: {said}", None, verdict)

    def run_cancelled(self, run: Run) -> None:
        """The job was cancelled while it ran or before it began."""
        entry, job = run.entry, run.entry.job
        self._finish(run)
        self._writer.ack_cancelled(entry)
        now_ms, attempt = self._state.clock(), job.attempt + 1
        for name in ("failed", "dlq"):
            extras = {"attempt": attempt, "reason": "cancelled"}
            self._writer.emit(event_fields(name, job.id, now_ms, job.name, **extras))

    def entry_discarded(self, entry: StreamEntry) -> None:
        """The entry was lost or cancelled while it waited for a worker."""
        if entry.id in self._state.cancelled_ids:
            self.run_cancelled(Run(entry, None))
        else:  # it runs elsewhere
            self._state.run_finished()
            self._state.mark_acked([entry.id])

    def run_interrupted(self, run: Run) -> None:
        """The run was cut off by the shutdown: hand it back; the run counts."""
        self._finish(run)
        self._writer.requeue(run.entry, run.entry.job.attempt + 1)

    def entry_not_started(self, entry: StreamEntry) -> None:
        """The entry was read, but not begun before the shutdown."""
        self._state.run_finished()
        self._writer.requeue(entry, entry.job.attempt)

    def entry_invalid(self, entry: InvalidEntry) -> None:
        """The entry cannot become a job."""
        burial = NewDeadLetter(
            entry.id, entry.raw, entry.job_name, entry.reason, entry.detail,
            error=entry.detail, attempts=0, failed_at_ms=self._state.clock(),
        )  # fmt: skip
        self._writer.dead_letter(burial, entry.previous_deliveries)

    def retries_exhausted(self, entry: StreamEntry) -> None:
        """The budget was used up by runs that crashed."""
        error = "every run the job was allowed crashed its worker or was cut off"
        self._dead_letter(entry, "retries_exhausted", error, entry.job.attempt)

    def _complete(self, run: Run, value: Any) -> None:
        seconds = self._finish(run)
        job = run.entry.job
        self._state.metrics.record_run(job.name, seconds, ok=True)
        self._writer.complete(run.entry, value)
        if not self._writer.events_enabled:
            return
        event = encode_completed(
            job.id, self._state.clock(), job.name, job.attempt + 1, int(seconds * 1e6)
        )
        self._writer.emit_encoded(event)

    def _fail(
        self, entry: StreamEntry, seconds: float, reason: str, error: str, delay_ms: int | None,
        dead_reason: str = "",
    ) -> None:  # fmt: skip
        job = entry.job
        if self._writer.events_enabled:
            self._writer.emit(
                event_fields(
                    "failed", job.id, self._state.clock(), job.name,
                    attempt=job.attempt + 1, reason=reason[:_MAX_ERROR_LENGTH],
                    duration_us=int(seconds * 1e6),
                )
            )  # fmt: skip
        runs = job.attempt + 1
        if dead_reason or runs >= self._retry.max_attempts_for(job.retry):
            often = "1 run" if runs == 1 else f"{runs} runs"
            log.info("job %s (%s) is dead after %s: %s", job.id, job.name or "-", often, error)
            self._dead_letter(entry, dead_reason or "retries_exhausted", error, runs)
            return
        if delay_ms is None:
            delay_ms = self._retry.backoff_ms(job.retry, runs, random.random())
        self._state.metrics.record_backoff(job.name, delay_ms / 1000)
        self._writer.reschedule(entry, runs, delay_ms, failed=True)

    def _dead_letter(self, entry: StreamEntry, reason: str, error: str, attempts: int) -> None:
        job = entry.job
        burial = NewDeadLetter(
            entry.id, encode_job(job), job.name, reason,
            error=error[:_MAX_ERROR_LENGTH], attempts=attempts, failed_at_ms=self._state.clock(),
            job_id=job.id,
        )  # fmt: skip
        self._writer.dead_letter(burial, attempts)

    def _finish(self, run: Run) -> float:
        seconds = time.perf_counter() - run.started
        self._state.running.pop(run.entry.id, None)
        self._state.run_finished(seconds)
        return seconds


def _safe_str(error: BaseException) -> str:
    """The text of a handler's error, which may be of a class that cannot say it."""
    try:
        return str(error)
    except Exception:
        return "(its text cannot be shown)"
