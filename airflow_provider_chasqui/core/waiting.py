"""Decide whether the wait for a job or a batch has ended. Nothing here reads from Redis.

`next_state` is used by every wait: `Queue.wait` and `Queue.wait_batch`, the triggers, the tasks
that do not defer, and `chasqui batch show --wait`. The state in Redis decides. Events only cause an
early look, so a lost event delays the end of a wait and cannot prevent it.

| subject | durable end state |
|---|---|
| job of a batch | its done bit or dead bit; the batch was cancelled |
| other job | its stored result or its dead letter |
| other job without a result | it was on the queue or has a dedup marker, and is gone from it |
| batch | its counts of bits; the batch was cancelled |

A `completed` event also ends the wait for a job that has no batch bit. Workers of ChasquiMQ 1.3.0
set no batch bits; `core/event_outcomes.py` counts the events of their jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, overload

from airflow_provider_chasqui.core.batch import BatchProgress
from airflow_provider_chasqui.core.job import DeadLetter

CANCELLED = "cancelled"
# Consecutive searches that must not find a job before it counts as gone. A job that moves from one
# key to another during a search can be missed once.
_MAX_MISSES = 2
# A look at a batch counts the bits of each part. The pause between two looks grows with the number
# of parts, so that a wait causes at most about 1000 BITCOUNT commands per second.
_SECONDS_PER_PART = 0.002


@dataclass(frozen=True, slots=True)
class WaitIntervals:
    """The timing of a wait. All values are in seconds.

    :param poll_interval: time between two looks at a job or a batch without events.
    :param first_scan_delay: time until the queue is first searched for an unfinished job.
    :param scan_interval: time between two searches of the queue for the same job.
    :param min_interval: minimum time between two looks at the same job or batch.
    :param bit_delay: time after an event in which the worker may still set the batch bit.
    """

    poll_interval: float = 15.0
    first_scan_delay: float = 10.0
    scan_interval: float = 300.0
    min_interval: float = 0.1
    bit_delay: float = 1.0


@dataclass(frozen=True, slots=True)
class Wait:
    """What a wait remembers between two looks. Times are of a monotonic clock, in seconds.

    :param deadline: when the wait times out; None for never.
    :param must_exist: whether a job or batch that does not exist ends the wait. If False, the wait
        lasts until it exists.
    :param found: whether the job or batch was observed to exist.
    :param due_at: when the job becomes due, if it was delayed at the last search.
    :param misses: the number of consecutive searches that did not find the job.
    :param next_scan_at: when the queue is searched next.
    :param unconfirmed_since: when an event was first newer than the batch bits.
    """

    deadline: float | None = None
    must_exist: bool = True
    found: bool = False
    due_at: float | None = None
    misses: int = 0
    next_scan_at: float = 0.0
    unconfirmed_since: float | None = None


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The outcome of a job.

    :param job_id: the id of the job.
    :param status: `done`, `dead`, or `unknown` if Redis has no record of the job.
    :param reason: the reason of the dead letter, e.g. `retries_exhausted`.
    :param error: the error of the last attempt.
    :param attempts: the number of attempts.
    """

    job_id: str
    status: str
    reason: str | None = None
    error: str | None = None
    attempts: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as the payload of a trigger event."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class JobObservation:
    """One look at a job.

    :param job_id: the id of the job.
    :param outcome: `done` or `dead` if a bit, a result or a dead letter proves it.
    :param reason: why the job is dead, if that is known without a dead letter.
    :param dead_letter: the dead letter of the job, if there is one.
    :param in_batch: whether the job belongs to a batch.
    :param recorded: whether its batch or its dedup marker exists.
    :param cancelled: whether the cancellation of the job was requested.
    :param place: `queue` if a search found the job, `absent` if a complete search did not find it,
        None if the queue was not or not completely searched.
    :param due_at: when the job becomes due, if it is delayed.
    :param event: the name of the last final event of the job, if one was read.
    :param event_reason: the reason in that event.
    """

    job_id: str
    outcome: Literal["done", "dead"] | None = None
    reason: str | None = None
    dead_letter: DeadLetter | None = None
    in_batch: bool = False
    recorded: bool = False
    cancelled: bool = False
    place: Literal["queue", "absent"] | None = None
    due_at: float | None = None
    event: str | None = None
    event_reason: str | None = None


@dataclass(frozen=True, slots=True)
class BatchSnapshot:
    """The state of a batch at one point in time.

    :param progress: the counts that Redis has.
    :param done: completed jobs, including those known only from events.
    :param dead: dead jobs, including those known only from events.
    :param lost: jobs that are not on the queue although they neither completed nor died.
    """

    progress: BatchProgress
    done: int
    dead: int
    lost: int = 0

    @property
    def finished(self) -> bool:
        """Whether every job has completed, died or been lost."""
        total = self.progress.total
        return total is not None and self.done + self.dead + self.lost >= total


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """The outcome of a batch.

    :param status: `finished`, `cancelled`, or `unknown` if the batch does not exist.
    :param snapshot: the last state; None if the batch does not exist.
    """

    status: str
    snapshot: BatchSnapshot | None


@dataclass(frozen=True, slots=True)
class BatchObservation:
    """One look at a batch.

    :param progress: the counts that Redis has; None if the batch does not exist.
    :param event_done: completed jobs without a bit, according to events.
    :param event_dead: dead jobs without a bit, according to events.
    :param place: `queue` if a search found a job of the batch, `absent` if a complete search found
        none, None if the queue was not or not completely searched.
    :param dead_letter_count: the number of dead letters of the batch. It is read if `place` is
        `absent` and a worker sets no bits.
    """

    progress: BatchProgress | None
    event_done: int = 0
    event_dead: int = 0
    place: Literal["queue", "absent"] | None = None
    dead_letter_count: int | None = None


@dataclass(frozen=True, slots=True)
class Pending:
    """The wait goes on.

    :param wait: what to remember until the next look.
    :param check_at: when to look again if no event comes before.
    :param earliest_check_at: when to look again at the earliest, even if events come.
    :param snapshot: the state of the batch, if the wait is for one that exists.
    """

    wait: Wait
    check_at: float
    earliest_check_at: float
    snapshot: BatchSnapshot | None = None


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The deadline has passed. `snapshot` is the state of the batch, if it exists."""

    snapshot: BatchSnapshot | None = None


@overload
def next_state(
    wait: Wait, observation: JobObservation, now: float, intervals: WaitIntervals | None = None
) -> Pending | JobEnd | TimedOut: ...


@overload
def next_state(
    wait: Wait, observation: BatchObservation, now: float, intervals: WaitIntervals | None = None
) -> Pending | BatchEnd | TimedOut: ...


def next_state(
    wait: Wait,
    observation: JobObservation | BatchObservation,
    now: float,
    intervals: WaitIntervals | None = None,
) -> Pending | JobEnd | BatchEnd | TimedOut:
    """Return whether a wait has ended, and if not, when to look again.

    :param wait: what the wait remembers from earlier looks.
    :param observation: the look at the job or the batch.
    :param now: the time of the look, of a monotonic clock.
    :param intervals: the timing; the default is `WaitIntervals()`.
    """
    intervals = intervals or WaitIntervals()
    if isinstance(observation, JobObservation):
        return _next_job_state(wait, observation, now, intervals)
    return _next_batch_state(wait, observation, now, intervals)


def _next_job_state(
    wait: Wait, job: JobObservation, now: float, intervals: WaitIntervals
) -> JobEnd | Pending | TimedOut:
    if job.outcome == "done":
        return JobEnd(job.job_id, "done")
    if job.outcome == "dead" or job.dead_letter is not None:
        return _dead(job)
    wait = _after_search(wait, job.place, now, intervals)
    if job.place == "queue":
        wait = replace(wait, found=True, due_at=job.due_at)
    elif job.event == "dlq" and job.event_reason == CANCELLED:
        return _dead(job)
    elif job.event == "completed":
        if not job.in_batch or job.place == "absent":
            return JobEnd(job.job_id, "done")
        wait = replace(wait, unconfirmed_since=wait.unconfirmed_since or now)
        if now - (wait.unconfirmed_since or now) >= intervals.bit_delay:
            return JobEnd(job.job_id, "done")
    if job.in_batch and not job.recorded and wait.must_exist:
        return JobEnd(job.job_id, "unknown")
    if not (wait.must_exist or wait.found or job.recorded or job.event):
        wait = replace(wait, misses=0)  # the job does not exist yet
    elif job.place == "absent" and wait.misses >= _MAX_MISSES:
        status = _status_of_absent_job(wait, job, now)
        return _dead(job) if status == "dead" else JobEnd(job.job_id, status)
    return _pending(wait, now, intervals, intervals.min_interval)


def _status_of_absent_job(wait: Wait, job: JobObservation, now: float) -> str:
    """Return the status of a job without a bit, a result, a dead letter or a `completed` event."""
    if job.event == "dlq":
        return "dead"  # and its dead letter was purged
    if job.in_batch:
        return "unknown"  # a worker would have set the bit
    if job.cancelled or (wait.due_at is not None and now < wait.due_at):
        return "dead"  # it left the delayed set before it was due
    return "done" if wait.found or job.recorded else "unknown"


def _dead(job: JobObservation) -> JobEnd:
    dead_letter = job.dead_letter
    if dead_letter is not None:
        error = dead_letter.error or dead_letter.detail
        reason = dead_letter.reason or None
        return JobEnd(job.job_id, "dead", reason, error, dead_letter.attempts)
    reason = job.reason or job.event_reason
    if reason is None and job.outcome is None and job.event is None:
        reason = CANCELLED
    return JobEnd(job.job_id, "dead", reason)


def _next_batch_state(
    wait: Wait, batch: BatchObservation, now: float, intervals: WaitIntervals
) -> BatchEnd | Pending | TimedOut:
    progress = batch.progress
    if progress is None:
        if wait.must_exist or wait.found:
            return BatchEnd("unknown", None)
        return _pending(wait, now, intervals, intervals.min_interval)
    wait = _after_search(replace(wait, found=True), batch.place, now, intervals)
    snapshot = BatchSnapshot(progress, progress.done, progress.dead)
    if progress.cancelled:
        return BatchEnd(CANCELLED, snapshot)
    bits_missing = batch.event_done + batch.event_dead > 0
    if bits_missing:
        wait = replace(wait, unconfirmed_since=wait.unconfirmed_since or now)
        if now - (wait.unconfirmed_since or now) >= intervals.bit_delay:
            snapshot = replace(
                snapshot,
                done=progress.done + batch.event_done,
                dead=progress.dead + batch.event_dead,
            )
    else:
        wait = replace(wait, unconfirmed_since=None)
    if progress.total is None:
        wait = replace(wait, misses=0)  # its jobs are still being added
    elif not snapshot.finished and batch.place == "absent" and wait.misses >= _MAX_MISSES:
        snapshot = _snapshot_of_absent_jobs(snapshot, progress.total, batch.dead_letter_count)
    if snapshot.finished:
        return BatchEnd("finished", snapshot)
    min_interval = max(intervals.min_interval, progress.parts * _SECONDS_PER_PART)
    return _pending(wait, now, intervals, min(min_interval, intervals.poll_interval), snapshot)


def _snapshot_of_absent_jobs(
    snapshot: BatchSnapshot, total: int, dead_letter_count: int | None
) -> BatchSnapshot:
    """Return the final state of a batch that has unfinished jobs, none of which is on the queue."""
    if dead_letter_count is None:
        return replace(snapshot, lost=total - snapshot.done - snapshot.dead)
    # The worker sets no bits and some of its events were trimmed. Jobs that are neither on the
    # queue nor in the DLQ have completed.
    return replace(snapshot, done=total - dead_letter_count, dead=dead_letter_count)


def _after_search(wait: Wait, place: str | None, now: float, intervals: WaitIntervals) -> Wait:
    """Count consecutive misses and schedule the next search, which comes earlier after a miss."""
    if place is None:
        if wait.next_scan_at <= now:  # the search was due, and was not complete
            return replace(wait, next_scan_at=now + intervals.scan_interval)
        return wait
    if place == "queue":
        return replace(wait, misses=0, next_scan_at=now + intervals.scan_interval)
    misses = wait.misses + 1
    delay = intervals.scan_interval if misses > _MAX_MISSES else intervals.first_scan_delay
    return replace(wait, misses=misses, next_scan_at=now + delay)


def _pending(
    wait: Wait,
    now: float,
    intervals: WaitIntervals,
    min_interval: float,
    snapshot: BatchSnapshot | None = None,
) -> Pending | TimedOut:
    if wait.deadline is not None and now >= wait.deadline:
        return TimedOut(snapshot)
    check_at = min(now + intervals.poll_interval, max(wait.next_scan_at, now + min_interval))
    if wait.unconfirmed_since is not None:
        check_at = min(check_at, max(now + min_interval, now + intervals.bit_delay))
    if wait.deadline is not None:
        check_at = min(check_at, wait.deadline)
    return Pending(wait, check_at, now + min_interval, snapshot)
