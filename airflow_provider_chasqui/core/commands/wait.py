"""Wait until a job or a batch has finished.

Events wake the caller early. The state is read first and again at intervals, because events can be
trimmed or switched off. The final event of a job also ends its wait: a job without a batch and
without a stored result is known only from its event. A batch is decided by its state alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_chasqui.core.batch import BatchProgress
from airflow_provider_chasqui.core.command import CommandFlow
from airflow_provider_chasqui.core.commands import batches, events, inspect
from airflow_provider_chasqui.core.errors import BatchNotFound, JobFailed, WaitTimeout
from airflow_provider_chasqui.core.keys import Keys

_STATE_CHECK_INTERVAL_MS = 5_000
_BATCH_CHECK_INTERVAL_MS = 500
# A ChasquiMQ worker emits `completed` before it stores the result.
_MAX_RESULT_DELAY_MS = 1_000
_RESULT_POLL_MS = 20


def wait_for_job(
    keys: Keys, job_id: str, group: str, timeout_ms: int, clock: Callable[[], int]
) -> CommandFlow[Any]:
    """Wait until a job is done and return its result.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    :param group: the consumer group of the workers.
    :param timeout_ms: how long to wait, in milliseconds.
    :param clock: returns the current time in milliseconds.
    :return: the result, or None if none was stored.
    :raises JobFailed: if the job is dead.
    :raises WaitTimeout: if the job has not finished in time.
    """
    deadline_ms = clock() + timeout_ms
    # Read before the first state check, so that an event in between is not missed.
    cursor = yield events.last_event_id(keys)
    next_check_ms = 0
    while True:
        if clock() >= next_check_ms:
            status = yield from inspect.find_job(keys, job_id, group)
            if status.state == "done":
                return (yield from _wait_for_result(keys, job_id, clock))
            if status.state == "dead":
                raise _job_failed(job_id, keys.queue_name, status.reason)
            next_check_ms = clock() + _STATE_CHECK_INTERVAL_MS
        remaining_ms = deadline_ms - clock()
        if remaining_ms <= 0:
            raise WaitTimeout(
                f"the job did not finish within {timeout_ms / 1000:g} s; its state is "
                f"{status.state}. Wait longer, or check that a worker consumes the queue",
                queue_name=keys.queue_name,
                job_id=job_id,
            )
        block_ms = max(1, min(remaining_ms, next_check_ms - clock()))
        for event in (yield events.wait_for_events(keys, cursor, 1000, block_ms)):
            cursor = event.entry_id
            if event.job_id == job_id and event.name == "completed":
                return (yield from _wait_for_result(keys, job_id, clock))
            if event.job_id == job_id and event.name == "dlq":
                raise _job_failed(job_id, keys.queue_name, event.reason)


def _wait_for_result(keys: Keys, job_id: str, clock: Callable[[], int]) -> CommandFlow[Any]:
    deadline_ms = clock() + _MAX_RESULT_DELAY_MS
    cursor = yield events.last_event_id(keys)
    while True:
        exists, result = yield inspect.get_result(keys, job_id)
        if exists or clock() >= deadline_ms:
            return result
        yield events.wait_for_events(keys, cursor, 1, _RESULT_POLL_MS)


def _job_failed(job_id: str, queue_name: str, reason: str | None) -> JobFailed:
    if reason == "cancelled":  # a cancelled job has no dead letter
        message = "the job is dead: cancelled"
    elif reason:
        message = f"the job is dead: {reason}; its dead letter has the error"
    else:
        message = "the job is dead; its dead letter has the error, unless it was cancelled"
    return JobFailed(message, queue_name=queue_name, job_id=job_id)


def wait_for_batch(
    keys: Keys, batch_id: str, timeout_ms: int, clock: Callable[[], int]
) -> CommandFlow[BatchProgress]:
    """Wait until every job of a batch is done or dead.

    :param keys: the keys of the queue.
    :param batch_id: the id of the batch.
    :param timeout_ms: how long to wait, in milliseconds.
    :param clock: returns the current time in milliseconds.
    :return: the final progress.
    :raises BatchNotFound: if there is no such batch.
    :raises WaitTimeout: if the batch has not finished in time.
    """
    deadline_ms = clock() + timeout_ms
    cursor = yield events.last_event_id(keys)
    while True:
        progress = yield from batches.progress(keys, batch_id)
        if progress is None:
            raise BatchNotFound(
                f"batch {batch_id!r} does not exist or has expired", queue_name=keys.queue_name
            )
        if progress.finished:
            return progress
        remaining_ms = deadline_ms - clock()
        if remaining_ms <= 0:
            raise WaitTimeout(
                f"batch {batch_id!r} did not finish within {timeout_ms / 1000:g} s: "
                f"{progress.done} done and {progress.dead} dead of "
                f"{progress.total or 'an unknown number'}. Wait longer, or check that a worker "
                "consumes the queue",
                queue_name=keys.queue_name,
            )
        block_ms = max(1, min(remaining_ms, _BATCH_CHECK_INTERVAL_MS))
        page = yield events.wait_for_events(keys, cursor, 10_000, block_ms)
        cursor = page[-1].entry_id if page else cursor
