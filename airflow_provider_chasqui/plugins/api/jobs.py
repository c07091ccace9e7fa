"""The route for one job: its state, payload, result, events and the task that enqueued it."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from airflow_provider_chasqui.core.batch import parse_batch_job_id
from airflow_provider_chasqui.core.command import CommandFlow
from airflow_provider_chasqui.core.commands import dead_letters, inspect
from airflow_provider_chasqui.core.commands.dead_letters import DeadLetterFilter
from airflow_provider_chasqui.core.commands.inspect import UNKNOWN, JobStatus, find_job_bounded
from airflow_provider_chasqui.core.errors import BatchNotFound, ChasquiError, DecodeError
from airflow_provider_chasqui.core.event import FINAL_EVENTS, Event
from airflow_provider_chasqui.core.ids import ulid_timestamp_ms
from airflow_provider_chasqui.core.job import DeadLetter
from airflow_provider_chasqui.core.json_values import to_jsonable
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.plugins.api import serializers
from airflow_provider_chasqui.plugins.api.app_state import AppStateDep, ServerDep
from airflow_provider_chasqui.plugins.api.server_pool import ServerConnection
from airflow_provider_chasqui.plugins.api.task_origin import batch_origin, job_origin
from airflow_provider_chasqui.queue import AsyncQueue

router = APIRouter(prefix="/connections/{connection_id}/queue/job")

_EVENTS_PAGE_SIZE = 2_000
_MAX_EVENT_PAGES = 50
_MAX_EVENTS = 200
_MAX_DEAD_LETTERS_SCANNED = 10_000
_CLOCK_SKEW_MS = 3600 * 1000


@router.get("")
async def get_job(
    app_state: AppStateDep,
    server: ServerDep,
    queue_name: str,
    job_id: Annotated[str, Query(max_length=1000)],
) -> dict[str, Any]:
    """Return everything that is known about a job.

    The search reads a limited number of entries. `search_truncated` is true if the job was not
    found and some entries were not read.
    """
    settings, keys = app_state.server_pool.settings, Keys(queue_name)
    batch = await _batch_progress(server, queue_name, job_id)
    start_ms = _search_start_ms(job_id, batch)
    search = await server.run_flow(
        queue_name, find_job_bounded(keys, job_id, server.group, start_ms)
    )
    events, more_events = await server.run_flow(queue_name, _job_events(keys, job_id, start_ms))
    status = _resolve_from_events(search.status, events)
    dead_letter = None
    if status.state == "dead":
        dead_letter = await server.run_flow(queue_name, _find_dead_letter(keys, job_id))
    has_result, result, progress = await server.run(
        queue_name, lambda queue: _result_and_progress(queue, job_id)
    )
    job = status.job or (dead_letter.job if dead_letter else None)
    event_job_name = next((event.job_name for event in events if event.job_name), "")
    return {
        "id": job_id,
        "state": status.state,
        "search_truncated": status is UNKNOWN and not search.complete,
        "name": job.name if job else event_job_name,
        "attempt": serializers.attempt_number(job),
        "created_at": job.created_at_ms if job else None,
        "due_at": status.due_ms,
        "entry_id": status.entry_id,
        "reason": status.reason or (dead_letter.reason if dead_letter else None),
        "payload": serializers.payload_text(job, settings),
        "result": serializers.value_text(result, settings) if has_result else None,
        "progress": None if settings.hide_payloads else to_jsonable(progress, settings.mask_fields),
        "dead_letter": serializers.dead_letter_detail(dead_letter, settings)
        if dead_letter
        else None,
        "events": [serializers.event_row(event) for event in events],
        "more_events": more_events,
        "batch": batch,
        "origin": await _find_origin(server, queue_name, job_id, batch),
    }


async def _batch_progress(
    server: ServerConnection, queue_name: str, job_id: str
) -> dict[str, Any] | None:
    batch_job = parse_batch_job_id(job_id)
    if batch_job is None:
        return None
    with suppress(BatchNotFound):
        return serializers.batch_row(
            await server.run(queue_name, lambda queue: queue.batch_progress(batch_job.batch_id))
        )
    return None


def _search_start_ms(job_id: str, batch: dict[str, Any] | None) -> int | None:
    """Return when a job was created, by its batch or its id, less an hour for clock skew."""
    created_ms = batch["created_at"] if batch else ulid_timestamp_ms(job_id)
    return None if created_ms is None else max(0, created_ms - _CLOCK_SKEW_MS)


def _resolve_from_events(status: JobStatus, events: list[Event]) -> JobStatus:
    """Return the state from the last final event if the job was not found elsewhere."""
    last = next((event for event in reversed(events) if event.name in FINAL_EVENTS), None)
    if status is not UNKNOWN or last is None:
        return status
    return JobStatus("done") if last.name == "completed" else JobStatus("dead", reason=last.reason)


def _job_events(
    keys: Keys, job_id: str, start_ms: int | None
) -> CommandFlow[tuple[list[Event], bool]]:
    """Return the events of a job, oldest first, and whether there may be more."""
    events: list[Event] = []
    cursor: str | None = f"{start_ms or 0}-0"
    for _ in range(_MAX_EVENT_PAGES):
        page: inspect.JobEventsPage = yield inspect.job_events(
            keys, job_id, cursor or "0-0", _EVENTS_PAGE_SIZE
        )
        events += page.events
        cursor = page.next_cursor
        if cursor is None or len(events) >= _MAX_EVENTS:
            break
    return events[:_MAX_EVENTS], cursor is not None


def _find_dead_letter(keys: Keys, job_id: str) -> CommandFlow[DeadLetter | None]:
    page = yield from dead_letters.search(
        keys,
        DeadLetterFilter(job_ids=frozenset({job_id})),
        1,
        None,
        max_scanned=_MAX_DEAD_LETTERS_SCANNED,
    )
    return page.dead_letters[0] if page.dead_letters else None


async def _result_and_progress(queue: AsyncQueue, job_id: str) -> tuple[bool, Any, Any]:
    """Return whether a result is stored, the result, and the last reported progress."""
    try:
        has_result, result = await queue.client.execute(inspect.get_result(queue.keys, job_id))
        return has_result, result, await queue.progress(job_id)
    except DecodeError as error:
        return True, serializers.unreadable_text(error), None


async def _find_origin(
    server: ServerConnection, queue_name: str, job_id: str, batch: dict[str, Any] | None
) -> dict[str, Any] | None:
    if batch:
        return batch_origin(batch["id"], batch["source"])
    try:
        return await run_in_threadpool(job_origin, server.connection_id, queue_name, job_id)
    except ChasquiError:
        return None
