"""Jobs, letters, events and batches as the page gets them: JSON, bounded, secrets masked."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from airflow_provider_chasqui.core.batch import BatchProgress, place_of
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.event import Event
from airflow_provider_chasqui.core.job import Job, Letter
from airflow_provider_chasqui.core.ops.browsing import DelayedRow, JobRow
from airflow_provider_chasqui.core.ops.letters import buried_at_ms
from airflow_provider_chasqui.core.repeat import RepeatStatus
from airflow_provider_chasqui.core.schedule import Every, Schedule
from airflow_provider_chasqui.plugins.api.origin import origin_of_batch
from airflow_provider_chasqui.plugins.api.settings import Settings

LONGEST = 64 * 1024
_LINE = 300
_DEPTH = 40
_MASK = "***"


def plain(value: Any, masked: frozenset[str], depth: int = 0) -> Any:
    """Return a payload as JSON can carry it; values of masked fields are not in it."""
    if depth > _DEPTH:
        return "…"
    if isinstance(value, Mapping):
        return {
            str(key): _MASK if str(key).lower() in masked else plain(each, masked, depth + 1)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(each, masked, depth + 1) for each in value]
    if isinstance(value, bytes):
        return f"bytes:{base64.b64encode(value).decode()}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def value_text(value: Any, settings: Settings) -> dict[str, Any]:
    """Return a payload or result as indented text, cut if it is long."""
    if settings.hide_payloads:
        return {"hidden": True, "text": "", "cut": False}
    text = json.dumps(plain(value, settings.mask_fields), indent=2, ensure_ascii=False)
    return {"hidden": False, "text": text[:LONGEST], "cut": len(text) > LONGEST}


def payload(job: Job | None, settings: Settings) -> dict[str, Any] | None:
    if job is None:
        return None
    try:
        return value_text(job.payload, settings)
    except DecodeError as error:
        return {"hidden": False, "text": f"cannot be read: {error.message}", "cut": False}


def _line(text: str | None) -> str | None:
    if text is None or len(text) <= _LINE:
        return text
    return text[:_LINE] + "…"


def _batch_of(job_id: str | None) -> str | None:
    place = place_of(job_id or "")
    return place.batch if place else None


def job_row(row: JobRow) -> dict[str, Any]:
    job = row.job
    return {
        "entry_id": row.entry_id,
        "id": job.id if job else None,
        "name": row.name,
        "size": row.size,
        "state": row.state,
        "attempt": job.attempt if job else None,
        "created_at": job.created_at_ms if job else None,
        "at": int(row.entry_id.partition("-")[0]),
        "consumer": row.consumer,
        "idle_ms": row.idle_ms,
        "deliveries": row.deliveries,
        "batch": _batch_of(job.id if job else None),
    }


def delayed_row(row: DelayedRow) -> dict[str, Any]:
    job = row.job
    return {
        "id": job.id if job else None,
        "name": job.name if job else "",
        "size": row.size,
        "due_at": row.due_ms,
        "attempt": job.attempt if job else None,
        "created_at": job.created_at_ms if job else None,
        "batch": _batch_of(job.id if job else None),
    }


def letter_row(letter: Letter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "job_id": letter.job_id,
        "name": letter.name,
        "reason": letter.reason,
        "error": _line(letter.error or letter.detail),
        "attempts": letter.attempts,
        "at": buried_at_ms(letter),
        "size": len(letter.raw),
        "batch": _batch_of(letter.job_id),
        "readable": letter.job is not None,
    }


def letter_whole(letter: Letter, settings: Settings) -> dict[str, Any]:
    return {
        **letter_row(letter),
        "error": (letter.error or "")[:LONGEST] or None,
        "detail": (letter.detail or "")[:LONGEST] or None,
        "source_id": letter.source_id,
        "created_at": letter.job.created_at_ms if letter.job else None,
        "payload": payload(letter.job, settings),
    }


def event_row(event: Event) -> dict[str, Any]:
    return asdict(event)


def _schedule(schedule: Schedule) -> str:
    if isinstance(schedule, Every):
        return f"every {schedule.interval_ms / 1000:g} s"
    return f"{schedule.expression} ({schedule.tz or 'UTC'})"


def repeat_row(status: RepeatStatus) -> dict[str, Any]:
    repeat = status.repeat
    return {
        "key": repeat.key,
        "name": repeat.name,
        "schedule": _schedule(repeat.schedule),
        "next_at": status.next_fire_ms,
        "fired": status.fired,
        "limit": repeat.limit,
        "start_at": repeat.start_ms,
        "end_at": repeat.end_ms,
        "missed": repeat.missed.kind,
    }


def batch_row(progress: BatchProgress) -> dict[str, Any]:
    return {
        "id": progress.id,
        "total": progress.total,
        "parts": progress.parts,
        "sent": progress.sent,
        "done": progress.done,
        "dead": progress.dead,
        "finished": progress.finished,
        "created_at": progress.created_at_ms,
        "source": progress.source,
        "origin": origin_of_batch(progress.id, progress.source),
    }
