"""The route for one job: its state, payload, result, events and the task that enqueued it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from airflow_provider_chasqui.core.batch import parse_batch_job_id
from airflow_provider_chasqui.core.command import CommandFlow
from airflow_provider_chasqui.core.commands import dead_letters, inspect, results
from airflow_provider_chasqui.core.commands import events as event_commands
from airflow_provider_chasqui.core.commands.dead_letters import DeadLetterFilter
from airflow_provider_chasqui.core.commands.inspect import JobStatus
from airflow_provider_chasqui.core.errors import BatchNotFound, ChasquiError, DecodeError
from airflow_provider_chasqui.core.event import FINAL_EVENTS, Event
from airflow_provider_chasqui.core.job import DeadLetter
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.plugins.api import serializers
from airflow_provider_chasqui.plugins.api.app_state import AppStateDep, ServerDep
from airflow_provider_chasqui.plugins.api.permissions import (
    UserDep,
    editable_connections,
    readable_dags,
    require_connection_read,
    visible_settings,
)
from airflow_provider_chasqui.plugins.api.server_pool import ServerConnection
from airflow_provider_chasqui.plugins.api.task_origin import batch_origin, job_origin
from airflow_provider_chasqui.queue_async import AsyncQueue

router = APIRouter(
    prefix="/connections/{connection_id}/queue/job", dependencies=[require_connection_read]
)

_MAX_ENTRIES_SCANNED = 30_000
_MAX_EVENTS = 200
_MAX_EVENTS_SCANNED = 100_000
_MAX_DEAD_LETTERS_SCANNED = 10_000
_CLOCK_SKEW_MS = 3600 * 1000


@router.get("")
async def get_job(
    app_state: AppStateDep,
    server: ServerDep,
    user: UserDep,
    queue_name: str,
    job_id: Annotated[str, Query(max_length=1000)],
) -> dict[str, Any]:
    """Return everything that is known about a job.

    The search reads a limited number of entries. `search_truncated` is true if the job was not
    found and some entries were not read.
    """
    keys = Keys(queue_name)
    settings = await visible_settings(user, server.connection_id, app_state.server_pool.settings)
    batch = await _batch_progress(server, queue_name, job_id)
    origin = await _find_origin(server, queue_name, job_id, batch)
    if origin is not None and not await readable_dags(user, [origin["dag_id"]]):
        settings, origin = replace(settings, hide_payloads=True), None
        batch = None if batch is None else {**batch, "origin": None, "source": ""}
    start_ms = _search_start_ms(batch)
    found = await server.run_flow(
        queue_name,
        inspect.find_job(
            keys,
            job_id,
            server.group,
            created_after_ms=start_ms,
            max_scanned=_MAX_ENTRIES_SCANNED,
        ),
    )
    timeline = await server.run_flow(
        queue_name,
        event_commands.job_timeline(
            keys,
            job_id,
            created_after_ms=start_ms,
            max_events=_MAX_EVENTS,
            max_scanned=_MAX_EVENTS_SCANNED,
        ),
    )
    events = timeline.events
    status = _resolve_from_events(found, events)
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
        "search_truncated": not status.exhaustive,
        "name": job.name if job else event_job_name,
        "attempt": serializers.attempt_number(job),
        "created_at": job.created_at_ms if job else None,
        "due_at": status.due_ms,
        "entry_id": status.entry_id,
        "reason": status.reason or (dead_letter.reason if dead_letter else None),
        "payload": serializers.payload_text(job, settings),
        "result": serializers.value_text(result, settings) if has_result else None,
        "progress": None if settings.hide_payloads else serializers.masked_json(progress, settings),
        "dead_letter": serializers.dead_letter_detail(dead_letter, settings)
        if dead_letter
        else None,
        "events": [serializers.event_row(event, settings) for event in events],
        "more_events": not timeline.complete,
        "batch": batch,
        "can_edit": bool(await editable_connections(user, [server.connection_id])),
        "origin": origin,
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


def _search_start_ms(batch: dict[str, Any] | None) -> int | None:
    """Return the earliest creation time of a job of the batch, allowing for skewed clocks."""
    created_ms = batch["created_at"] if batch else None
    return None if created_ms is None else max(0, created_ms - _CLOCK_SKEW_MS)


def _resolve_from_events(found: JobStatus, events: list[Event]) -> JobStatus:
    """Return the state from the last final event if the job was not found elsewhere."""
    last = next((event for event in reversed(events) if event.name in FINAL_EVENTS), None)
    if found.state != "unknown" or last is None:
        return found
    return JobStatus("done") if last.name == "completed" else JobStatus("dead", reason=last.reason)


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
        has_result, result = await queue.client.run_flow(results.get_result(queue.keys, job_id))
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
