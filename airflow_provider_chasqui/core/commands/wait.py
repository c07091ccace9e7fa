"""Look at awaited jobs and batches, and wait for them with blocking calls.

The looks are shared by the blocking waits below and by the triggers. `core.waiting.next_state`
decides what follows from a look.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_chasqui.core.batch import BatchProgress, parse_batch_job_id
from airflow_provider_chasqui.core.command import (
    Command,
    CommandFlow,
    as_int,
    as_raw,
    redis_command,
)
from airflow_provider_chasqui.core.commands import (
    batches,
    dead_letters,
    delayed,
    events,
    inspect,
    results,
)
from airflow_provider_chasqui.core.commands.cancellation import get_requests
from airflow_provider_chasqui.core.commands.consumer_group import NO_SIZE_LIMIT, parse_entry
from airflow_provider_chasqui.core.errors import (
    BatchCancelled,
    BatchNotFound,
    ConnectionFailed,
    JobFailed,
    WaitTimeout,
)
from airflow_provider_chasqui.core.event import FINAL_EVENTS, Event
from airflow_provider_chasqui.core.event_outcomes import EventOutcomes
from airflow_provider_chasqui.core.job import DeadLetter, StreamEntry
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.waiting import (
    CANCELLED,
    BatchEnd,
    BatchObservation,
    BatchSnapshot,
    JobEnd,
    JobObservation,
    Pending,
    TimedOut,
    Wait,
    WaitIntervals,
    next_state,
)

# The timing of the blocking waits. A search is cheap for one job with a generated id.
_JOB_INTERVALS = WaitIntervals(poll_interval=5.0, first_scan_delay=1.0, scan_interval=5.0)
_BATCH_INTERVALS = WaitIntervals(poll_interval=0.5)
_MIN_READ_INTERVAL_MS = 50
_MAX_EVENTS_PER_READ = 1000
# A ChasquiMQ worker emits `completed` before it stores the result.
_MAX_RESULT_DELAY_S = 1.0
_RESULT_POLL_MS = 50
# XREAD after this id never returns an entry, so that it only waits.
_MAX_ENTRY_ID = "18446744073709551615-18446744073709551615"

# A search reads pages whose size follows from the size of the entries, and ends after this many
# bytes. It is then incomplete.
MAX_SCANNED_BYTES = 64 * 1024 * 1024
_FIRST_PAGE_SIZE = 16
_MAX_PAGE_SIZE = 1000
_TARGET_PAGE_BYTES = 512 * 1024


# Looks


def observe_jobs(keys: Keys, job_ids: Sequence[str]) -> CommandFlow[list[JobObservation]]:
    """Look at the bits, results and markers of jobs, without a search.

    :param keys: the keys of the queue.
    :param job_ids: the ids of the jobs.
    """
    commands: list[Command[Any]] = []
    positions = [parse_batch_job_id(job_id) for job_id in job_ids]
    for job_id, position in zip(job_ids, positions, strict=True):
        if position:
            commands += batches.completion_bits(keys, position)
            batch_key = keys.batch(position.batch_id)
            commands.append(redis_command("EXISTS", batch_key, parse=as_int))
            commands.append(redis_command("HGET", batch_key, "cancelled", parse=as_raw))
        else:
            commands.append(redis_command("EXISTS", keys.result(job_id), parse=as_int))
            commands.append(redis_command("EXISTS", keys.dedup_marker(job_id), parse=as_int))
            commands.append(get_requests(keys, [job_id]))
    replies = iter((yield commands)) if commands else iter(())
    observations = []
    for job_id, position in zip(job_ids, positions, strict=True):
        if position:
            done, dead, exists, cancelled = (next(replies) for _ in range(4))
            observation = JobObservation(job_id, in_batch=True, recorded=bool(exists))
            if done or dead:
                observation = replace(observation, outcome="done" if done else "dead")
            elif cancelled:
                observation = replace(observation, outcome="dead", reason=CANCELLED)
        else:
            has_result, marker, (request,) = (next(replies) for _ in range(3))
            observation = JobObservation(
                job_id,
                "done" if has_result else None,
                recorded=bool(marker),
                cancelled=request is not None and not request.superseded,
            )
        observations.append(observation)
    return observations


def look_at_job(
    keys: Keys, job_id: str, group: str
) -> CommandFlow[tuple[JobObservation, inspect.JobStatus]]:
    """Look at a job and search for it.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    :param group: the consumer group of the workers.
    """
    (observation,) = yield from observe_jobs(keys, [job_id])
    status = inspect.JobStatus(observation.outcome or "unknown", reason=observation.reason)
    if observation.outcome is None:
        status = yield from inspect.find_job(keys, job_id, group)
    if status.state == "done":
        observation = replace(observation, outcome="done")
    elif status.state == "dead":
        dead_letters_by_id = yield from find_dead_letters(keys, [job_id])
        observation = replace(
            observation,
            outcome="dead",
            reason=status.reason,
            dead_letter=dead_letters_by_id.get(job_id),
        )
    elif status.state != "unknown":
        observation = replace(observation, place="queue")
    elif status.exhaustive:
        observation = replace(observation, place="absent")
    return observation, status


def count_missing_bits(
    keys: Keys, batch_id: str, outcomes: EventOutcomes
) -> CommandFlow[tuple[int, int]]:
    """Return how many jobs are done and dead according to events and have no bit in Redis.

    :param keys: the keys of the queue.
    :param batch_id: the id of the batch.
    :param outcomes: the outcomes according to events.
    """
    done = dead = 0
    for part, first, last in outcomes.chunks():
        bits = yield [
            redis_command("GETRANGE", key, first, last, parse=as_raw)
            for key in (keys.batch_done(batch_id, part), keys.batch_dead(batch_id, part))
        ]
        missing_done, missing_dead = outcomes.count_missing(part, first, *bits)
        done += missing_done
        dead += missing_dead
    return done, dead


# Searches


@dataclass(slots=True)
class QueueScan:
    """The awaited jobs and batches that are on the queue.

    :param wanted_jobs: the jobs that were searched for.
    :param jobs: the due time in milliseconds of each job that was found; None if it is not delayed.
    :param batch_ids: the batches of which a job was found.
    :param complete: whether the whole queue was searched, or everything was found.
    """

    wanted_jobs: frozenset[str]
    jobs: dict[str, int | None] = field(default_factory=dict)
    batch_ids: set[str] = field(default_factory=set)
    complete: bool = False


class _PageReader:
    """Limits the bytes of a page and of a whole search."""

    def __init__(self) -> None:
        self.page_size = _FIRST_PAGE_SIZE
        self.remaining_bytes = MAX_SCANNED_BYTES

    def add_page(self, page_bytes: int, count: int) -> None:
        self.remaining_bytes -= page_bytes
        entry_bytes = max(1, page_bytes // max(1, count))
        fitting = max(1, _TARGET_PAGE_BYTES // entry_bytes)
        self.page_size = min(_MAX_PAGE_SIZE, fitting, self.page_size * 8)


def scan_queue(
    keys: Keys, job_ids: Collection[str], batch_ids: Collection[str], start: str = "-"
) -> CommandFlow[QueueScan]:
    """Search the stream, then the delayed set, then the entries added to the stream since.

    A retry moves a job from the stream to the delayed set, therefore the delayed set is read after
    the stream. A promotion moves a job to the end of the stream, therefore the end is read last.
    The search ends early if everything was found, or after `MAX_SCANNED_BYTES`.

    :param keys: the keys of the queue.
    :param job_ids: the jobs to search for.
    :param batch_ids: the batches of which any job is searched for.
    :param start: the stream id before which none of them was added; `-` if unknown.
    """
    wanted_jobs, wanted_batches = frozenset(job_ids), frozenset(batch_ids)
    scan, reader = QueueScan(wanted_jobs), _PageReader()

    def check(job_id: str, due_ms: int | None) -> None:
        if job_id in wanted_jobs:
            scan.jobs[job_id] = due_ms
        position = parse_batch_job_id(job_id) if wanted_batches else None
        if position and position.batch_id in wanted_batches:
            scan.batch_ids.add(position.batch_id)

    def is_over() -> bool:
        found_all = len(scan.jobs) == len(wanted_jobs)
        return found_all and len(scan.batch_ids) == len(wanted_batches)

    stream_length, delayed_count = yield [
        redis_command("XLEN", keys.stream, parse=as_int),
        redis_command("ZCARD", keys.delayed, parse=as_int),
    ]
    if not stream_length and not delayed_count:
        # A second look, because a job may have been promoted between the two commands.
        scan.complete = not (yield redis_command("XLEN", keys.stream, parse=as_int))
        if scan.complete:
            return scan
    end = yield from _scan_stream(keys, start, reader, check, is_over)
    if end is not None and not is_over():
        complete = yield from _scan_delayed(keys, reader, check, is_over)
        if complete and not is_over():
            end = yield from _scan_stream(keys, end, reader, check, is_over)
        elif not complete:
            end = None
    scan.complete = end is not None or is_over()
    return scan


def _scan_stream(
    keys: Keys,
    start: str,
    reader: _PageReader,
    check: Callable[[str, int | None], None],
    is_over: Callable[[], bool],
) -> CommandFlow[str | None]:
    """Return the start of the entries that were not read, or None if there are too many bytes."""
    while raw_entries := (yield inspect.read_entries(keys, start, reader.page_size)):
        for raw_entry in raw_entries:
            entry = parse_entry(raw_entry, NO_SIZE_LIMIT)
            if isinstance(entry, StreamEntry):
                check(entry.job.id, None)
        start = f"({raw_entries[-1][0].decode()}"
        page_bytes = sum(len(value) for raw_entry in raw_entries for value in raw_entry[1] or ())
        reader.add_page(page_bytes, len(raw_entries))
        if is_over():
            break
        if reader.remaining_bytes <= 0:
            return None
    return start


def _scan_delayed(
    keys: Keys,
    reader: _PageReader,
    check: Callable[[str, int | None], None],
    is_over: Callable[[], bool],
) -> CommandFlow[bool]:
    """Return whether the whole delayed set was read."""
    cursor = b"0"
    while True:
        cursor, members = yield redis_command(
            "ZSCAN", keys.delayed, cursor, "COUNT", reader.page_size, parse=_parse_zscan
        )
        for member, due_ms in members:
            job = delayed.decode_or_none(member)
            if job is not None:
                check(job.id, due_ms)
        if members:
            reader.add_page(sum(len(member) for member, _ in members), len(members))
        if cursor == b"0" or is_over():
            return True
        if reader.remaining_bytes <= 0:
            return False


def _parse_zscan(reply: Any) -> tuple[bytes, list[tuple[bytes, int]]]:
    return reply[0], delayed.parse_members(reply[1])


def find_dead_letters(keys: Keys, job_ids: Iterable[str]) -> CommandFlow[dict[str, DeadLetter]]:
    """Return the newest dead letter of each of the jobs, in one pass of limited size over the DLQ.

    :param keys: the keys of the queue.
    :param job_ids: the ids of the jobs.
    """
    wanted, reader = frozenset(job_ids), _PageReader()
    matches: dict[str, DeadLetter] = {}
    cursor = "+"
    while len(matches) < len(wanted) and reader.remaining_bytes > 0:
        page = yield dead_letters.page_newest_first(keys, cursor, reader.page_size)
        if not page:
            break
        for dead_letter in page:
            if dead_letter.job_id in wanted:
                matches.setdefault(dead_letter.job_id, dead_letter)
        cursor = page[-1].id
        reader.add_page(sum(len(dead_letter.raw) for dead_letter in page), len(page))
    return matches


# Blocking waits


def wait_for_job(
    keys: Keys,
    job_id: str,
    group: str,
    timeout_ms: int,
    clock: Callable[[], float],
    wall_clock: Callable[[], int],
) -> CommandFlow[Any]:
    """Wait until a job is done and return its result.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    :param group: the consumer group of the workers.
    :param timeout_ms: how long to wait, in milliseconds.
    :param clock: returns the time of a monotonic clock in seconds.
    :param wall_clock: returns the current time in milliseconds, for the due time of a delayed job.
    :return: the result, or None if none was stored.
    :raises JobFailed: if the job is dead.
    :raises WaitTimeout: if the job has not finished in time.
    """
    deadline = clock() + timeout_ms / 1000
    flow = _wait_for_job(keys, job_id, group, timeout_ms, deadline, clock, wall_clock)
    try:
        return (yield from flow)
    except ConnectionFailed as error:
        if timeout_ms and clock() >= deadline:
            raise _server_did_not_reply(f"job {job_id!r}", timeout_ms, keys, error) from error
        raise


def _wait_for_job(
    keys: Keys,
    job_id: str,
    group: str,
    timeout_ms: int,
    deadline: float,
    clock: Callable[[], float],
    wall_clock: Callable[[], int],
) -> CommandFlow[Any]:
    wait = Wait(deadline=deadline, must_exist=False)
    # Read before the first look, so that an event in between is not missed.
    cursor = yield events.last_event_id(keys)
    event: Event | None = None
    place = "unknown"
    while True:
        if wait.next_scan_at <= clock():
            observation, status = yield from look_at_job(keys, job_id, group)
            if status.due_ms is not None:
                due_at = clock() + (status.due_ms - wall_clock()) / 1000
                observation = replace(observation, due_at=due_at)
            place = status.state
        else:
            (observation,) = yield from observe_jobs(keys, [job_id])
        if event is not None and observation.place != "queue":
            observation = replace(observation, event=event.name, event_reason=event.reason)
        if observation.outcome == "dead" or observation.event == "dlq":
            dead_letters_by_id = yield from find_dead_letters(keys, [job_id])
            observation = replace(observation, dead_letter=dead_letters_by_id.get(job_id))
        state = next_state(wait, observation, clock(), _JOB_INTERVALS)
        if isinstance(state, JobEnd):
            if state.status == "done":
                return (yield from _wait_for_result(keys, job_id, clock))
            raise job_failed(state, keys.queue_name)
        if not isinstance(state, Pending):
            raise WaitTimeout(
                f"the job did not finish within {timeout_ms / 1000:g} s; its state is {place}. "
                "Wait longer, or check that a worker consumes the queue",
                queue_name=keys.queue_name,
                job_id=job_id,
            )
        wait = state.wait
        cursor, new_event = yield from _wait_for_event(keys, cursor, job_id, state, clock)
        event = new_event or event
        if new_event is not None and new_event.name == "dlq":
            wait = replace(wait, next_scan_at=0.0)


def _wait_for_event(
    keys: Keys, cursor: str, job_id: str, pending: Pending, clock: Callable[[], float]
) -> CommandFlow[tuple[str, Event | None]]:
    """Wait until the job has a final event or the next look is due. Read at most 20 times/s."""
    event = None
    yield pause(keys, _MIN_READ_INTERVAL_MS)
    while event is None and (remaining := pending.check_at - clock()) > 0:
        page = yield events.wait_for_events(
            keys, cursor, _MAX_EVENTS_PER_READ, max(1, int(remaining * 1000))
        )
        for candidate in page:
            cursor = candidate.entry_id
            if candidate.job_id == job_id:
                event = candidate if candidate.name in FINAL_EVENTS else None
        if page and event is None:
            yield pause(keys, _MIN_READ_INTERVAL_MS)
    return cursor, event


def pause(keys: Keys, duration_ms: int) -> Command[Any]:
    """Wait on the server.

    :param keys: the keys of the queue.
    :param duration_ms: how long to wait, in milliseconds.
    """
    return events.wait_for_events(keys, _MAX_ENTRY_ID, 1, max(1, duration_ms))


def _wait_for_result(keys: Keys, job_id: str, clock: Callable[[], float]) -> CommandFlow[Any]:
    deadline = clock() + _MAX_RESULT_DELAY_S
    while True:
        exists, result = yield from results.get_result(keys, job_id)
        if exists or clock() >= deadline:
            return result
        yield pause(keys, _RESULT_POLL_MS)


def _server_did_not_reply(
    subject: str, timeout_ms: int, keys: Keys, error: ConnectionFailed
) -> WaitTimeout:
    return WaitTimeout(
        f"the end of {subject} was not seen within {timeout_ms / 1000:g} s, because the server was "
        f"not reachable: {error}",
        queue_name=keys.queue_name,
    )


def job_failed(end: JobEnd, queue_name: str) -> JobFailed:
    """Return the error for a dead job.

    :param end: the outcome of the job.
    :param queue_name: the name of the queue.
    """
    if end.reason == CANCELLED:  # a cancelled job has no dead letter
        message = "the job is dead: cancelled"
    elif end.error:
        reason = f" ({end.reason})" if end.reason else ""
        message = f"the job is dead{reason}: {end.error}"
    elif end.reason:
        message = f"the job is dead: {end.reason}; its dead letter has the error"
    else:
        message = "the job is dead; its dead letter has the error, unless it was cancelled"
    return JobFailed(message, queue_name=queue_name, job_id=end.job_id)


def wait_for_batch(
    keys: Keys,
    batch_id: str,
    timeout_ms: int,
    clock: Callable[[], float],
    on_progress: Callable[[BatchProgress], None] | None = None,
) -> CommandFlow[BatchProgress]:
    """Wait until every job of a batch is done or dead.

    :param keys: the keys of the queue.
    :param batch_id: the id of the batch.
    :param timeout_ms: how long to wait, in milliseconds.
    :param clock: returns the time of a monotonic clock in seconds.
    :param on_progress: called with the progress after every look.
    :return: the final progress.
    :raises BatchNotFound: if there is no such batch.
    :raises BatchCancelled: if the batch is cancelled.
    :raises WaitTimeout: if the batch has not finished in time.
    """
    deadline = clock() + timeout_ms / 1000
    flow = _wait_for_batch(keys, batch_id, timeout_ms, deadline, clock, on_progress)
    try:
        return (yield from flow)
    except ConnectionFailed as error:
        if timeout_ms and clock() >= deadline:
            raise _server_did_not_reply(f"batch {batch_id!r}", timeout_ms, keys, error) from error
        raise


def _wait_for_batch(
    keys: Keys,
    batch_id: str,
    timeout_ms: int,
    deadline: float,
    clock: Callable[[], float],
    on_progress: Callable[[BatchProgress], None] | None,
) -> CommandFlow[BatchProgress]:
    wait = Wait(deadline=deadline, next_scan_at=float("inf"))
    while True:
        progress = yield from batches.progress(keys, batch_id)
        if progress is not None and on_progress is not None:
            on_progress(progress)
        state = next_state(wait, BatchObservation(progress), clock(), _BATCH_INTERVALS)
        if isinstance(state, BatchEnd):
            raise_unless_finished(state, batch_id, keys.queue_name)
            assert progress is not None
            return progress
        if isinstance(state, TimedOut) and state.snapshot is not None:
            raise batch_timed_out(state.snapshot, timeout_ms / 1000, keys.queue_name)
        assert isinstance(state, Pending)
        wait = state.wait
        yield pause(keys, int((state.earliest_check_at - clock()) * 1000))


def raise_unless_finished(end: BatchEnd, batch_id: str, queue_name: str | None) -> None:
    """Raise the error of a wait for a batch that did not finish.

    :param end: the outcome of the batch.
    :param batch_id: the id of the batch.
    :param queue_name: the name of the queue.
    :raises BatchNotFound: if there is no such batch.
    :raises BatchCancelled: if the batch was cancelled.
    """
    if end.snapshot is None:
        raise BatchNotFound(
            f"there is no batch {batch_id!r}, or it has expired", queue_name=queue_name
        )
    if end.status == CANCELLED:
        progress = end.snapshot.progress
        raise BatchCancelled(
            f"batch {batch_id!r} was cancelled: {progress.done} done and {progress.dead} dead of "
            f"{describe_total(progress)}; the other jobs do not run",
            queue_name=queue_name,
        )


def batch_timed_out(
    snapshot: BatchSnapshot, timeout_s: float, queue_name: str | None
) -> WaitTimeout:
    """Return the error for a batch that did not finish in time.

    :param snapshot: the last state of the batch.
    :param timeout_s: how long the wait was, in seconds.
    :param queue_name: the name of the queue.
    """
    return WaitTimeout(
        f"batch {snapshot.progress.batch_id!r} did not finish within {timeout_s:g} s: "
        f"{snapshot.done} done and {snapshot.dead} dead of {describe_total(snapshot.progress)}. "
        "Wait longer, or check that a worker consumes the queue",
        queue_name=queue_name,
    )


def describe_total(progress: BatchProgress) -> str:
    """Return the number of jobs of a batch as text."""
    return "an unknown number" if progress.total is None else str(progress.total)
