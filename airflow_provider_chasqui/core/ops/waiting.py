"""wait: follow one job or one batch to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_chasqui.core.batch import BatchProgress
from airflow_provider_chasqui.core.errors import JobDead, UnknownBatch, WaitTimeout
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Flow
from airflow_provider_chasqui.core.ops import batches, looking

_LOOK_AGAIN_MS = 5_000
# A worker that is not ours says `completed` before its result can be read.
_RESULT_LATE_MS = 1_000
_RESULT_PAUSE_MS = 20


def wait_job(
    keys: Keys, job_id: str, group: str, timeout_ms: int, clock: Callable[[], int]
) -> Flow[Any]:
    """Return the job's result once it is done (None if none was kept); raise JobDead if it died.

    The place in the events is taken before the first look, so an end in between is not missed; the
    look is repeated in case events were trimmed or are switched off.
    """
    deadline_ms = clock() + timeout_ms
    place = yield looking.events_tail(keys)
    look_at_ms = 0
    while True:
        if clock() >= look_at_ms:
            found = yield from looking.find(keys, job_id, group)
            if found.state == "done":
                return (yield from _result(keys, job_id, clock))
            if found.state == "dead":
                raise _dead(job_id, keys.queue, found.reason)
            look_at_ms = clock() + _LOOK_AGAIN_MS
        left_ms = deadline_ms - clock()
        if left_ms <= 0:
            raise WaitTimeout(
                f"the job did not end within {timeout_ms / 1000:g} s; it is {found.state}",
                queue=keys.queue,
                job_id=job_id,
            )
        block_ms = max(1, min(left_ms, look_at_ms - clock()))
        for event in (yield looking.events_wait(keys, place, 1000, block_ms)):
            place = event.entry_id
            if event.job_id == job_id and event.name == "completed":
                return (yield from _result(keys, job_id, clock))
            if event.job_id == job_id and event.name == "dlq":
                raise _dead(job_id, keys.queue, event.reason)


def _result(keys: Keys, job_id: str, clock: Callable[[], int]) -> Flow[Any]:
    deadline_ms = clock() + _RESULT_LATE_MS
    place = yield looking.events_tail(keys)
    while True:
        kept, value = yield looking.result(keys, job_id)
        if kept or clock() >= deadline_ms:
            return value
        yield looking.events_wait(keys, place, 1, _RESULT_PAUSE_MS)


def _dead(job_id: str, queue: str, reason: str | None) -> JobDead:
    return JobDead(
        f"the job died: {reason or 'it was cancelled'}; see its letter", queue=queue, job_id=job_id
    )


def wait_batch(
    keys: Keys, batch: str, timeout_ms: int, clock: Callable[[], int]
) -> Flow[BatchProgress]:
    """Return the progress of a batch once every job of it is done or dead."""
    deadline_ms = clock() + timeout_ms
    place = yield looking.events_tail(keys)
    while True:
        progress = yield from batches.progress(keys, batch)
        if progress is None:
            raise UnknownBatch(f"there is no batch {batch!r}, or it has expired", queue=keys.queue)
        if progress.finished:
            return progress
        left_ms = deadline_ms - clock()
        if left_ms <= 0:
            raise WaitTimeout(
                f"the batch {batch!r} did not end within {timeout_ms / 1000:g} s: {progress.done} "
                f"done and {progress.dead} dead of {progress.total or 'an unknown number'}",
                queue=keys.queue,
            )
        events = yield looking.events_wait(keys, place, 10_000, max(1, min(left_ms, 500)))
        place = events[-1].entry_id if events else place
