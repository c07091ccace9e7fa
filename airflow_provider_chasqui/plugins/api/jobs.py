"""One job: where it is, what it carries, what happened to it, and which task sent it."""

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
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.plugins.api import serializers
from airflow_provider_chasqui.plugins.api.app_state import AppStateDep, ServerDep
from airflow_provider_chasqui.plugins.api.server_pool import ServerConnection
from airflow_provider_chasqui.plugins.api.task_origin import batch_origin, job_origin
from airflow_provider_chasqui.queue_async import AsyncQueue

router = APIRouter(prefix="/connections/{connection_id}/queue/job")

_EVENTS_PAGE_SIZE = 2_000
_MAX_EVENT_PAGES = 50
_CLOCK_SKEW_MS = 3600 * 1000
_MAX_EVENTS = 200


@router.get("")
async def get_job(
    app_state: AppStateDep,
    server: ServerDep,
    queue_name: str,
    job_id: Annotated[str, Query(max_length=1000)],
) -> dict[str, Any]:
    """Return what is known of a job; looking for it ends after a while, and says so."""
    settings, keys = app_state.server_pool.settings, Keys(queue_name)
    batch = await _batch_progress(server, queue_name, job_id)
    since_ms = _search_start_ms(job_id, batch)
    sought = await server.run_flow(
        queue_name, find_job_bounded(keys, job_id, server.group, since_ms)
    )
    events, more = await server.run_flow(queue_name, _job_events(keys, job_id, since_ms))
    found = _resolve_from_events(sought.status, events)
    letter = None
    if found.state == "dead":
        page = await server.run_flow(
            queue_name,
            dead_letters.search(
                keys, DeadLetterFilter(job_ids=frozenset({job_id})), 1, None, max_scanned=10_000
            ),
        )
        letter = page.dead_letters[0] if page.dead_letters else None
    kept, result, progress = await server.run(
        queue_name, lambda queue: _result_and_progress(queue, job_id)
    )
    job = found.job or (letter.job if letter else None)
    return {
        "id": job_id,
        "state": found.state,
        "search_truncated": found is UNKNOWN and not sought.complete,
        "name": job.name if job else next((each.job_name for each in events if each.job_name), ""),
        "attempt": job.attempt if job else None,
        "created_at": job.created_at_ms if job else None,
        "due_at": found.due_ms,
        "entry_id": found.entry_id,
        "reason": found.reason or (letter.reason if letter else None),
        "payload": serializers.payload_text(job, settings),
        "result": serializers.value_text(result, settings) if kept else None,
        "progress": None
        if settings.hide_payloads
        else serializers.to_jsonable(progress, settings.mask_fields),
        "dead_letter": serializers.dead_letter_detail(letter, settings) if letter else None,
        "events": [serializers.event_row(each) for each in events],
        "more_events": more,
        "batch": batch,
        "origin": await _find_origin(server, queue_name, job_id, batch),
    }


async def _batch_progress(
    server: ServerConnection, queue_name: str, job_id: str
) -> dict[str, Any] | None:
    place = parse_batch_job_id(job_id)
    if place is None:
        return None
    with suppress(BatchNotFound):
        return serializers.batch_row(
            await server.run(queue_name, lambda queue: queue.batch_progress(place.batch_id))
        )
    return None


def _search_start_ms(job_id: str, batch: dict[str, Any] | None) -> int | None:
    """Return when a job was made, by its batch or its id, with room for skewed clocks."""
    made_ms = batch["created_at"] if batch else ulid_timestamp_ms(job_id)
    return None if made_ms is None else max(0, made_ms - _CLOCK_SKEW_MS)


def _resolve_from_events(found: JobStatus, events: list[Event]) -> JobStatus:
    """What left no other trace may have left events."""
    last = next((each for each in reversed(events) if each.name in FINAL_EVENTS), None)
    if found is not UNKNOWN or last is None:
        return found
    return JobStatus("done") if last.name == "completed" else JobStatus("dead", reason=last.reason)


def _job_events(
    keys: Keys, job_id: str, since_ms: int | None
) -> CommandFlow[tuple[list[Event], bool]]:
    events: list[Event] = []
    after: str | None = f"{since_ms or 0}-0"
    for _ in range(_MAX_EVENT_PAGES):
        page = yield inspect.job_events(keys, job_id, after or "0-0", _EVENTS_PAGE_SIZE)
        events += page.events
        after = page.after
        if after is None or len(events) >= _MAX_EVENTS:
            break
    return events[:_MAX_EVENTS], after is not None


async def _result_and_progress(queue: AsyncQueue, job_id: str) -> tuple[bool, Any, Any]:
    try:
        kept, result = await queue.client.execute(inspect.get_result(queue.keys, job_id))
        return kept, result, await queue.progress(job_id)
    except DecodeError as error:
        return True, f"cannot be read: {error.message}", None


async def _find_origin(
    server: ServerConnection, queue_name: str, job_id: str, batch: dict[str, Any] | None
) -> dict[str, Any] | None:
    if batch:
        return batch_origin(batch["id"], batch["source"])
    try:
        return await run_in_threadpool(job_origin, server.connection_id, queue_name, job_id)
    except ChasquiError:
        return None
