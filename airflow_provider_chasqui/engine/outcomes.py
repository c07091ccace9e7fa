"""Outcomes of runs: decides between completion, retry and dead letter, and emits the events.

`OutcomeHandler.retry_or_dead_letter` is the retry decision. The delay before the next attempt
comes from `core/retry.py`. The decisions are written to the server by `engine/outcome_writer.py`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow_provider_chasqui.core.codec import decode_envelope, decode_job_id, encode_job
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
from airflow_provider_chasqui.engine.backoff import log
from airflow_provider_chasqui.engine.consumer_state import ConsumerState
from airflow_provider_chasqui.engine.context import Run
from airflow_provider_chasqui.engine.failure_log import FailureLog, error_name, format_traceback
from airflow_provider_chasqui.engine.handlers import Handler
from airflow_provider_chasqui.engine.outcome_writer import OutcomeWriter

# A run that finished without suspending: the entry, what the handler returned or raised, and when
# it started and finished (perf_counter).
InlineRun = tuple[StreamEntry, Any, float, float]
# Values that a handler returns to run its job again.
RESCHEDULE_TYPES = (Snooze, Retry)

_MAX_ERROR_LENGTH = 2000
_MS = timedelta(milliseconds=1)
# The delay before a job whose name has no handler is read again; it grows with the time.
_MIN_MISSING_DELAY_S, _MAX_MISSING_DELAY_S = 1.0, 30.0
_MAX_MISSING_NAMES = 1000


class OutcomeHandler:
    """Turns the end of a run into an outcome and passes it to the outcome writer.

    `job.attempt` is the number of attempts before this run. It counts every started run except
    snoozed ones: failed runs are counted in the envelope, crashed runs in the delivery count of the
    entry, and the reader adds the two. Events, logs and dead letters count from 1
    (`job.attempt + 1`).
    """

    def __init__(self, state: ConsumerState, writer: OutcomeWriter):
        self._state = state
        self._writer = writer
        self._retry = state.config.retry
        self.failures = FailureLog(state.queue.name)
        # When this worker first read a job whose name has no handler, by name.
        self._missing_since: dict[str, float] = {}

    def run_started(self, run: Run) -> None:
        """Record that a handler was started and emit `active`."""
        self._state.run_started(run)
        if not self._writer.events_enabled:
            return
        job = run.entry.job
        event = encode_active(job.id, self._state.clock(), job.name, job.attempt + 1)
        self._writer.emit_encoded(event)

    def run_returned(self, run: Run, value: Any) -> None:
        """Complete the job, or run it again if the handler returned `Snooze` or `Retry`.

        A cancelled job is not run again.
        """
        if run.cancelled and isinstance(value, RESCHEDULE_TYPES):
            self.run_cancelled(run)
        elif isinstance(value, Snooze):
            self._finish(run)
            attempt = run.entry.job.attempt
            self._writer.reschedule(run.entry, attempt, value.delay // _MS, failed=False)
        elif isinstance(value, Retry):
            seconds = self._finish(run)
            self._state.metrics.record_run(run.entry.job.name, seconds, ok=False)
            self.retry_or_dead_letter(
                run.entry, seconds, value.reason, value.reason, delay_ms=value.delay // _MS
            )
        else:
            self._complete(run, value)

    def run_raised(self, run: Run, error: BaseException) -> None:
        """Retry or dead-letter the job of a handler that raised; drop it if it is cancelled."""
        if run.cancelled:
            self.run_cancelled(run)
            return
        seconds = self._finish(run)
        self._state.metrics.record_run(run.entry.job.name, seconds, ok=False)
        self._handle_exception(run.entry, seconds, error)

    def inline_runs_returned(self, runs: Sequence[InlineRun]) -> None:
        """Complete the jobs of handlers that returned without suspending.

        Their outcomes are recorded together, and `active` and `completed` are emitted together,
        because recording them one by one dominates the cost of short jobs; see
        docs/performance.md.
        """
        state, writer = self._state, self._writer
        self._record_metrics(runs, ok=True)
        writer.complete_many([(entry, value) for entry, value, _, _ in runs])
        if not writer.events_enabled:
            return
        now_ms, now = state.clock(), time.perf_counter()
        writer.emit_encoded(
            *[
                encode_run_events(
                    (job := entry.job).id,
                    job.name,
                    job.attempt + 1,
                    now_ms - int((now - finished) * 1e3),
                    int((finished - started) * 1e6),
                )
                for entry, _, started, finished in runs
            ]
        )

    def inline_runs_raised(self, runs: Sequence[InlineRun]) -> None:
        """Retry or dead-letter the jobs of handlers that raised without suspending."""
        self._record_metrics(runs, ok=False)
        for entry, error, started, finished in runs:
            seconds = finished - started
            if self._writer.events_enabled:
                job, started_ms = entry.job, self._state.clock() - int(seconds * 1e3)
                event = encode_active(job.id, started_ms, job.name, job.attempt + 1)
                self._writer.emit_encoded(event)
            self._handle_exception(entry, seconds, error)

    def run_cancelled(self, run: Run) -> None:
        """Ack a job that was cancelled before or during its run, and emit `failed` and `dlq`."""
        entry, job = run.entry, run.entry.job
        self._finish(run)
        self._writer.ack_cancelled(entry)
        now_ms, attempt = self._state.clock(), job.attempt + 1
        for name in ("failed", "dlq"):
            extras = {"attempt": attempt, "reason": "cancelled"}
            self._writer.emit(event_fields(name, job.id, now_ms, job.name, **extras))

    def run_interrupted(self, run: Run) -> None:
        """Requeue a job that the shutdown interrupted. The run counts as an attempt."""
        self._finish(run)
        self._writer.requeue(run.entry, run.entry.job.attempt + 1)

    def entry_not_started(self, entry: StreamEntry) -> None:
        """Requeue an entry that was read and not started. It costs no attempt."""
        self._state.run_finished()
        self._writer.requeue(entry, entry.job.attempt)

    def entry_parked(self, entry: StreamEntry, handler: Handler, score: int) -> None:
        """Move an entry whose job name is paused to the delayed set. It costs no attempt."""
        self._state.run_finished()
        self._writer.park(entry, handler, score)

    def entry_discarded(self, entry: StreamEntry) -> None:
        """Drop an entry that was cancelled or claimed by another worker before it was started."""
        if entry.id in self._state.cancelled_ids:
            self.run_cancelled(Run(entry, None))
        else:
            self._state.run_finished()
            self._state.forget_entries([entry.id])

    def entry_invalid(self, entry: InvalidEntry) -> None:
        """Dead-letter an entry that cannot be decoded or is too large.

        Its batch counts it as dead if its id can be read.
        """
        try:
            job = decode_envelope(entry.raw)
            job_id, created_at_ms = job.id, job.created_at_ms
        except DecodeError:
            job_id, created_at_ms = decode_job_id(entry.raw), 0
        dead_letter = NewDeadLetter(
            entry.id,
            entry.raw,
            entry.job_name,
            entry.reason,
            entry.detail,
            error=entry.detail,
            attempts=0,
            failed_at_ms=self._state.clock(),
            job_id=job_id,
            created_at_ms=created_at_ms,
        )
        self._writer.dead_letter(dead_letter, entry.previous_deliveries)

    def attempts_exhausted(self, entry: StreamEntry, max_attempts: int) -> None:
        """Dead-letter a job that was delivered and has no attempt left.

        :param entry: the entry.
        :param max_attempts: the limit of the job.
        """
        if entry.previous_deliveries:
            error = (
                "no attempt is left. The worker of the last attempt crashed, lost its connection "
                "or was stopped before it wrote the outcome, so it is unknown whether the job ran"
            )
        else:
            error = (
                f"no attempt is left: {entry.job.attempt} attempts failed, and max_attempts was "
                f"lowered to {max_attempts} before the next one. The events have their errors"
            )
        self._dead_letter(entry, "retries_exhausted", error, entry.job.attempt)

    def handler_missing(self, entry: StreamEntry, known_names: Sequence[str]) -> None:
        """Put back a job whose name has no handler. It costs no attempt.

        Another worker may have the handler, such as during a deployment. If this worker has no
        handler for the name for `missing_handler_timeout`, the job is dead-lettered.

        :param entry: the entry.
        :param known_names: the job names that have a handler.
        """
        job, now = entry.job, time.monotonic()
        timeout = self._state.config.missing_handler_timeout
        self._state.metrics.counts["no_handler"] += 1
        since = self._missing_since.get(job.name)
        if since is None:
            if len(self._missing_since) >= _MAX_MISSING_NAMES:
                self._missing_since.clear()
            since = self._missing_since[job.name] = now
            log.warning(
                "reader: no handler for the job name %r (job %s of the queue %r); this worker has "
                "%s. Jobs with this name wait for another worker and use no attempt%s",
                job.name,
                job.id,
                self._state.queue.name,
                ", ".join(known_names) or "no handlers",
                "" if timeout is None else f"; after {timeout} they are dead-lettered",
            )
        elapsed = now - since
        if timeout is not None and elapsed >= timeout.total_seconds():
            error = (
                f"no handler for the job name {job.name!r}; the worker has "
                f"{', '.join(known_names) or 'no handlers'}. Correct the name or add the handler, "
                "then replay the job"
            )
            self._dead_letter(entry, "no_handler", error, job.attempt)
            return
        delay_s = min(_MAX_MISSING_DELAY_S, max(_MIN_MISSING_DELAY_S, elapsed / 4))
        if timeout is not None:
            delay_s = min(delay_s, timeout.total_seconds())
        delay_ms = int(delay_s * 1000 * (0.75 + random.random() / 2))
        self._writer.reschedule(entry, job.attempt, delay_ms, failed=False)

    def retry_or_dead_letter(
        self,
        entry: StreamEntry,
        seconds: float,
        reason: str,
        error: str,
        exception: BaseException | None = None,
        delay_ms: int | None = None,
        dead_reason: str = "",
    ) -> None:
        """Decide what follows a failed attempt, and emit `failed`.

        The job is moved to the dead-letter queue if it has no attempt left or if `dead_reason` is
        given. Otherwise it is scheduled again after `delay_ms`, or after the backoff of the job's
        retry policy and the worker's defaults (`RetryDefaults.backoff_ms`).

        :param entry: the entry whose run failed.
        :param seconds: how long the handler ran.
        :param reason: the error text for the event.
        :param error: the error text for the dead letter and the log.
        :param exception: what the handler raised; None if it returned `Retry`.
        :param delay_ms: the delay that the handler asked for.
        :param dead_reason: the reason not to retry, such as `unrecoverable`.
        """
        job = entry.job
        attempts = job.attempt + 1
        if self._writer.events_enabled:
            self._writer.emit(
                event_fields(
                    "failed",
                    job.id,
                    self._state.clock(),
                    job.name,
                    attempt=attempts,
                    reason=reason[:_MAX_ERROR_LENGTH],
                    duration_us=int(seconds * 1e6),
                )
            )
        self._state.metrics.errors[job.name, error_name(exception)] += 1
        max_attempts = self._retry.max_attempts_for(job.retry)
        if dead_reason or attempts >= max_attempts:
            consequence = f" of {max_attempts} and is moved to the dead-letter queue"
            self.failures.record(job.id, job.name, attempts, exception, error, consequence, True)
            self._dead_letter(
                entry,
                dead_reason or "retries_exhausted",
                error,
                attempts,
                format_traceback(exception),
            )
            return
        if delay_ms is None:
            delay_ms = self._retry.backoff_ms(job.retry, attempts, random.random())
        consequence = f" of {max_attempts} and is retried in {delay_ms / 1000:g} s"
        self.failures.record(job.id, job.name, attempts, exception, error, consequence, False)
        self._state.metrics.record_backoff(job.name, delay_ms / 1000)
        self._writer.reschedule(entry, attempts, delay_ms, failed=True)

    def _handle_exception(self, entry: StreamEntry, seconds: float, error: BaseException) -> None:
        text = error.message if isinstance(error, DecodeError) else _safe_str(error)
        dead_reason = error.dead_reason if isinstance(error, Unrecoverable) else ""
        message = f"{type(error).__name__}: {text}"
        self.retry_or_dead_letter(entry, seconds, text, message, error, dead_reason=dead_reason)

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

    def _dead_letter(
        self,
        entry: StreamEntry,
        reason: str,
        error: str,
        attempts: int,
        detail: str | None = None,
    ) -> None:
        job = entry.job
        dead_letter = NewDeadLetter(
            entry.id,
            encode_job(job),
            job.name,
            reason,
            detail,
            error=error[:_MAX_ERROR_LENGTH],
            attempts=attempts,
            failed_at_ms=self._state.clock(),
            job_id=job.id,
            created_at_ms=job.created_at_ms,
        )
        self._writer.dead_letter(dead_letter, attempts)

    def _record_metrics(self, runs: Sequence[InlineRun], *, ok: bool) -> None:
        durations: dict[str, list[float]] = {}
        for entry, _, started, finished in runs:
            durations.setdefault(entry.job.name, []).append(finished - started)
        for name, seconds in durations.items():
            self._state.metrics.record_runs(name, seconds, ok)
            self._state.run_finished(sum(seconds), len(seconds))

    def _finish(self, run: Run) -> float:
        """Remove a run from the running ones; return how many seconds it took."""
        seconds = time.perf_counter() - run.started
        self._state.running.pop(run.entry.id, None)
        self._state.run_finished(seconds)
        return seconds


def _safe_str(error: BaseException) -> str:
    """Return the text of an error, whose class may have a broken `__str__`."""
    try:
        return str(error)
    except Exception:
        return "(the error has no readable text)"
