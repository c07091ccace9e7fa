"""One job: where it is, what it carries, what happened to it, and which task sent it."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from airflow_provider_chasqui.core.batch import place_of
from airflow_provider_chasqui.core.errors import ChasquiError, DecodeError, UnknownBatch
from airflow_provider_chasqui.core.event import FINAL, Event
from airflow_provider_chasqui.core.ids import time_of
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Flow
from airflow_provider_chasqui.core.ops import browsing, letter_pages, looking
from airflow_provider_chasqui.core.ops.letters import Choose
from airflow_provider_chasqui.core.ops.looking import UNKNOWN, Found
from airflow_provider_chasqui.core.ops.seeking import seek
from airflow_provider_chasqui.plugins.api import shown
from airflow_provider_chasqui.plugins.api.origin import origin_of_batch, origin_of_job
from airflow_provider_chasqui.plugins.api.reach import Line
from airflow_provider_chasqui.plugins.api.state import Here, TheLine
from airflow_provider_chasqui.queue import AsyncQueue

router = APIRouter(prefix="/connections/{connection_id}/queue/job")

_PAGE = 2_000
_PAGES = 50
_SKEW_MS = 3600 * 1000
_EVENTS = 200


@router.get("")
async def job(
    here: Here, line: TheLine, queue_name: str, id: Annotated[str, Query(max_length=1000)]
) -> dict[str, Any]:
    """Return what is known of a job; looking for it ends after a while, and says so."""
    settings, keys = here.reach.settings, Keys(queue_name)
    batch = await _batch(line, queue_name, id)
    since_ms = _since(id, batch)
    sought = await line.flow(queue_name, seek(keys, id, line.group, since_ms))
    events, more = await line.flow(queue_name, _timeline(keys, id, since_ms))
    found = _judged(sought.found, events)
    letter = None
    if found.state == "dead":
        page = await line.flow(
            queue_name,
            letter_pages.look(keys, Choose(job_ids=frozenset({id})), 1, None, at_most=10_000),
        )
        letter = page.letters[0] if page.letters else None
    kept, result, progress = await line.ask(queue_name, lambda queue: _said(queue, id))
    job = found.job or (letter.job if letter else None)
    return {
        "id": id,
        "state": found.state,
        "gave_up": found is UNKNOWN and not sought.complete,
        "name": job.name if job else next((each.job_name for each in events if each.job_name), ""),
        "attempt": job.attempt if job else None,
        "created_at": job.created_at_ms if job else None,
        "due_at": found.due_ms,
        "entry_id": found.entry_id,
        "reason": found.reason or (letter.reason if letter else None),
        "payload": shown.payload(job, settings),
        "result": shown.value_text(result, settings) if kept else None,
        "progress": None if settings.hide_payloads else shown.plain(progress, settings.mask_fields),
        "letter": shown.letter_whole(letter, settings) if letter else None,
        "events": [shown.event_row(each) for each in events],
        "more_events": more,
        "batch": batch,
        "origin": await _origin(line, queue_name, id, batch),
    }


async def _batch(line: Line, queue_name: str, job_id: str) -> dict[str, Any] | None:
    place = place_of(job_id)
    if place is None:
        return None
    with suppress(UnknownBatch):
        return shown.batch_row(await line.ask(queue_name, lambda queue: queue.batch(place.batch)))
    return None


def _since(job_id: str, batch: dict[str, Any] | None) -> int | None:
    """Return when a job was made, by its batch or its id, with room for skewed clocks."""
    made_ms = batch["created_at"] if batch else time_of(job_id)
    return None if made_ms is None else max(0, made_ms - _SKEW_MS)


def _judged(found: Found, events: list[Event]) -> Found:
    """What left no other trace may have left events."""
    last = next((each for each in reversed(events) if each.name in FINAL), None)
    if found is not UNKNOWN or last is None:
        return found
    return Found("done") if last.name == "completed" else Found("dead", reason=last.reason)


def _timeline(keys: Keys, job_id: str, since_ms: int | None) -> Flow[tuple[list[Event], bool]]:
    events: list[Event] = []
    after: str | None = f"{since_ms or 0}-0"
    for _ in range(_PAGES):
        page = yield browsing.job_events(keys, job_id, after or "0-0", _PAGE)
        events += page.events
        after = page.after
        if after is None or len(events) >= _EVENTS:
            break
    return events[:_EVENTS], after is not None


async def _said(queue: AsyncQueue, job_id: str) -> tuple[bool, Any, Any]:
    try:
        kept, result = await queue.drive.run(looking.result(queue.keys, job_id))
        return kept, result, await queue.progress(job_id)
    except DecodeError as error:
        return True, f"cannot be read: {error.message}", None


async def _origin(
    line: Line, queue_name: str, job_id: str, batch: dict[str, Any] | None
) -> dict[str, Any] | None:
    if batch:
        return origin_of_batch(batch["id"], batch["source"])
    try:
        return await run_in_threadpool(origin_of_job, line.connection_id, queue_name, job_id)
    except ChasquiError:
        return None
