"""Conversion of jobs, dead letters, events, batches and errors to the JSON of the API.

Long texts are truncated and the values of secret fields are masked.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from airflow_provider_chasqui.core.batch import BatchProgress, parse_batch_job_id
from airflow_provider_chasqui.core.commands.dead_letters import dead_lettered_at_ms
from airflow_provider_chasqui.core.commands.inspect import DelayedRow, JobRow
from airflow_provider_chasqui.core.cron import Every, Schedule
from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    BatchNotFound,
    ChasquiError,
    ConnectionFailed,
    ConnectionNotFound,
    DecodeError,
    InvalidArgument,
    JobNotFound,
    KeyTypeMismatch,
    PermissionDenied,
    QueueNotFound,
    RedisServerError,
)
from airflow_provider_chasqui.core.event import Event
from airflow_provider_chasqui.core.job import DeadLetter, Job
from airflow_provider_chasqui.core.json_values import to_jsonable
from airflow_provider_chasqui.core.repeat import RepeatStatus
from airflow_provider_chasqui.core.stream_id import StreamId
from airflow_provider_chasqui.plugins.api.settings import Settings
from airflow_provider_chasqui.plugins.api.task_origin import batch_origin

MAX_TEXT_LENGTH = 64 * 1024
_MAX_LINE_LENGTH = 300


def value_text(value: Any, settings: Settings) -> dict[str, Any]:
    """Return a payload or result as indented JSON text.

    :param value: the payload or result.
    :param settings: which fields are masked, and whether payloads are hidden.
    """
    if settings.hide_payloads:
        return {"hidden": True, "text": "", "truncated": False}
    text = json.dumps(to_jsonable(value, settings.mask_fields), indent=2, ensure_ascii=False)
    return {
        "hidden": False,
        "text": text[:MAX_TEXT_LENGTH],
        "truncated": len(text) > MAX_TEXT_LENGTH,
    }


def payload_text(job: Job | None, settings: Settings) -> dict[str, Any] | None:
    """Return the payload of a job as text, or None if there is no job.

    :param job: the job.
    :param settings: which fields are masked, and whether payloads are hidden.
    """
    if job is None:
        return None
    try:
        return value_text(job.payload, settings)
    except DecodeError as error:
        return {"hidden": False, "text": unreadable_text(error), "truncated": False}


def unreadable_text(error: DecodeError) -> str:
    """Return the text that replaces a payload or result that cannot be decoded."""
    return f"This value cannot be decoded: {error.message}"


def attempt_number(job: Job | None) -> int | None:
    """Return the number of the current attempt, counted from 1, or None if there is no job."""
    return job.attempt + 1 if job else None


def _truncate(text: str | None) -> str | None:
    if text is None or len(text) <= _MAX_LINE_LENGTH:
        return text
    return text[:_MAX_LINE_LENGTH] + "…"


def _batch_id_of(job_id: str | None) -> str | None:
    batch_job = parse_batch_job_id(job_id or "")
    return batch_job.batch_id if batch_job else None


def job_row(row: JobRow) -> dict[str, Any]:
    """Return a waiting or running job."""
    job = row.job
    return {
        "entry_id": row.entry_id,
        "id": job.id if job else None,
        "name": row.job_name,
        "size": row.size,
        "state": row.state,
        "attempt": attempt_number(job),
        "created_at": job.created_at_ms if job else None,
        "enqueued_at": StreamId.parse(row.entry_id).ms,
        "consumer": row.consumer,
        "idle_ms": row.idle_ms,
        "deliveries": row.deliveries,
        "batch_id": _batch_id_of(job.id if job else None),
    }


def delayed_row(row: DelayedRow) -> dict[str, Any]:
    """Return a delayed job."""
    job = row.job
    return {
        "id": job.id if job else None,
        "name": job.name if job else "",
        "size": row.size,
        "due_at": row.due_ms,
        "attempt": attempt_number(job),
        "created_at": job.created_at_ms if job else None,
        "batch_id": _batch_id_of(job.id if job else None),
    }


def dead_letter_row(dead_letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter for a list, without its payload."""
    return {
        "id": dead_letter.id,
        "job_id": dead_letter.job_id,
        "job_name": dead_letter.job_name,
        "reason": dead_letter.reason,
        "error": _truncate(dead_letter.error or dead_letter.detail),
        "attempts": dead_letter.attempts,
        "dead_at": dead_lettered_at_ms(dead_letter),
        "size": len(dead_letter.raw),
        "batch_id": _batch_id_of(dead_letter.job_id),
        "readable": dead_letter.job is not None,
    }


def dead_letter_detail(dead_letter: DeadLetter, settings: Settings) -> dict[str, Any]:
    """Return a dead letter with its payload and its whole error.

    :param dead_letter: the dead letter.
    :param settings: which fields are masked, and whether payloads are hidden.
    """
    return {
        **dead_letter_row(dead_letter),
        "error": (dead_letter.error or "")[:MAX_TEXT_LENGTH] or None,
        "detail": (dead_letter.detail or "")[:MAX_TEXT_LENGTH] or None,
        "source_id": dead_letter.source_id,
        "created_at": dead_letter.job.created_at_ms if dead_letter.job else None,
        "payload": payload_text(dead_letter.job, settings),
    }


def event_row(event: Event) -> dict[str, Any]:
    """Return an event; its field names are those of `Event`."""
    return asdict(event)


def _format_schedule(schedule: Schedule) -> str:
    if isinstance(schedule, Every):
        return f"every {schedule.interval_ms / 1000:g} s"
    return f"{schedule.expression} ({schedule.tz or 'UTC'})"


def repeat_row(status: RepeatStatus) -> dict[str, Any]:
    """Return a repeatable job."""
    repeat = status.repeat
    return {
        "key": repeat.key,
        "name": repeat.job_name,
        "schedule": _format_schedule(repeat.schedule),
        "next_at": status.next_fire_ms,
        "fired": status.fire_count,
        "limit": repeat.limit,
        "start_at": repeat.start_ms,
        "end_at": repeat.end_ms,
        "misfire": repeat.misfire.kind,
    }


def batch_row(progress: BatchProgress) -> dict[str, Any]:
    """Return the progress of a batch."""
    return {
        "id": progress.batch_id,
        "total": progress.total,
        "parts": progress.parts,
        "enqueued": progress.enqueued,
        "done": progress.done,
        "dead": progress.dead,
        "finished": progress.finished,
        "created_at": progress.created_at_ms,
        "source": progress.source,
        "origin": batch_origin(progress.batch_id, progress.source),
    }


_HTTP_STATUS_CODES: tuple[tuple[type[ChasquiError], int], ...] = (
    (BatchNotFound, 404),
    (ConnectionNotFound, 404),
    (JobNotFound, 404),
    (QueueNotFound, 404),
    (InvalidArgument, 422),
    (DecodeError, 409),
    (KeyTypeMismatch, 409),
    (ConnectionFailed, 503),
    (AuthenticationFailed, 502),
    (PermissionDenied, 502),
    (RedisServerError, 502),
)


def http_status(error: ChasquiError) -> int:
    """Return the HTTP status for an error; 500 if the table has none."""
    return next((status for kind, status in _HTTP_STATUS_CODES if isinstance(error, kind)), 500)


def error_json(error: ChasquiError) -> dict[str, str | None]:
    """Return the code, the message and the queue of an error."""
    return {"code": error.code, "message": error.message, "queue": error.queue_name}


async def handle_error(_request: Request, error: Exception) -> JSONResponse:
    """Return a `ChasquiError` as a JSON response."""
    assert isinstance(error, ChasquiError)
    return JSONResponse({"error": error_json(error)}, http_status(error))
