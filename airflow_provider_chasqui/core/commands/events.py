"""wait: follow one job or one batch to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_chasqui.core.batch import BatchProgress
from airflow_provider_chasqui.core.command import CommandFlow
from airflow_provider_chasqui.core.commands import batches, inspect
from airflow_provider_chasqui.core.errors import BatchNotFound, JobFailed, WaitTimeout
from airflow_provider_chasqui.core.keys import Keys

_RECHECK_INTERVAL_MS = 5_000
# A worker that is not ours says `completed` before its result can be read.
_MAX_RESULT_DELAY_MS = 1_000
_RESULT_POLL_MS = 20


def wait_for_job(
    keys: Keys, job_id: str, group: str, timeout_ms: int, clock: Callable[[], int]
) -> CommandFlow[Any]:
    """Return the job's result once it is done (None if none was kept); raise JobFailed if it died.

    The place in the events is taken before the first look, so an end in between is not missed; the
    look is repeated in case events were trimmed or are switched off.
    """
    deadline_ms = clock() + timeout_ms
    place = yield inspect.last_event_id(keys)
    look_at_ms = 0
    while True:
        if clock() >= look_at_ms:
            found = yield from inspect.find_job(keys, job_id, group)
            if found.state == "done":
                return (yield from _wait_for_result(keys, job_id, clock))
            if found.state == "dead":
                raise _job_failed(job_id, keys.queue_name, found.reason)
            look_at_ms = clock() + _RECHECK_INTERVAL_MS
        left_ms = deadline_ms - clock()
        if left_ms <= 0:
            raise WaitTimeout(
                f"the job did not end within {timeout_ms / 1000:g} s; it is {found.state}",
                queue_name=keys.queue_name,
                job_id=job_id,
            )
        block_ms = max(1, min(left_ms, look_at_ms - clock()))
        for event in (yield inspect.wait_for_events(keys, place, 1000, block_ms)):
            place = event.entry_id
            if event.job_id == job_id and event.name == "completed":
                return (yield from _wait_for_result(keys, job_id, clock))
            if event.job_id == job_id and event.name == "dlq":
                raise _job_failed(job_id, keys.queue_name, event.reason)


def _wait_for_result(keys: Keys, job_id: str, clock: Callable[[], int]) -> CommandFlow[Any]:
    deadline_ms = clock() + _MAX_RESULT_DELAY_MS
    place = yield inspect.last_event_id(keys)
    while True:
        kept, value = yield inspect.get_result(keys, job_id)
        if kept or clock() >= deadline_ms:
            return value
        yield inspect.wait_for_events(keys, place, 1, _RESULT_POLL_MS)


def _job_failed(job_id: str, queue_name: str, reason: str | None) -> JobFailed:
    return JobFailed(
        f"the job died: {reason or 'it was cancelled'}; see its letter",
        queue_name=queue_name,
        job_id=job_id,
    )


def wait_for_batch(
    keys: Keys, batch_id: str, timeout_ms: int, clock: Callable[[], int]
) -> CommandFlow[BatchProgress]:
    """Return the progress of a batch once every job of it is done or dead."""
    deadline_ms = clock() + timeout_ms
    place = yield inspect.last_event_id(keys)
    while True:
        progress = yield from batches.progress(keys, batch_id)
        if progress is None:
            raise BatchNotFound(
                f"there is no batch {batch_id!r}, or it has expired", queue_name=keys.queue_name
            )
        if progress.finished:
            return progress
        left_ms = deadline_ms - clock()
        if left_ms <= 0:
            raise WaitTimeout(
                f"the batch {batch_id!r} did not end within {timeout_ms / 1000:g} s: {progress.done} "
                f"done and {progress.dead} dead of {progress.total or 'an unknown number'}",
                queue_name=keys.queue_name,
            )
        events = yield inspect.wait_for_events(keys, place, 10_000, max(1, min(left_ms, 500)))
        place = events[-1].entry_id if events else place
