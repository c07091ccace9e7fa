"""Conversion of jobs, dead letters, events, batches and errors to the JSON of the API.

Long texts are truncated. Secrets are masked in all of them: the values of secret fields, what
Airflow's secrets masker knows, and passwords in URLs.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from airflow._shared.secrets_masker import redact, should_hide_value_for_key
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
from airflow_provider_chasqui.core.masking import mask_passwords
from airflow_provider_chasqui.core.repeat import RepeatStatus
from airflow_provider_chasqui.core.stream_id import StreamId
from airflow_provider_chasqui.plugins.api.settings import Settings
from airflow_provider_chasqui.plugins.api.task_origin import batch_origin

MAX_TEXT_LENGTH = 64 * 1024
_MAX_LINE_LENGTH = 300
# A secret that begins before the cut is masked as a whole.
_MARGIN = 1000


def value_text(value: Any, settings: Settings) -> dict[str, Any]:
    """Return a payload or result as indented JSON text.

    :param value: the payload or result.
    :param settings: which fields are masked, and whether payloads are hidden.
    """
    if settings.hide_payloads:
        return {"hidden": True, "text": "", "truncated": False}
    text = json.dumps(masked_json(value, settings), indent=2, ensure_ascii=False)
    text = mask_text(text)
    return {
        "hidden": False,
        "text": text[:MAX_TEXT_LENGTH],
        "truncated": len(text) > MAX_TEXT_LENGTH,
    }


def masked_json(value: Any, settings: Settings) -> Any:
    """Return a value as JSON values, with the values of secret fields masked.

    :param value: the value.
    :param settings: which fields are masked in addition to those of Airflow's secrets masker.
    """

    def is_secret(name: str) -> bool:
        lower = name.lower()
        if any(field in lower for field in settings.mask_fields):
            return True
        return bool(should_hide_value_for_key(name))  # type: ignore[no-untyped-call]

    return to_jsonable(value, is_secret)


def mask_text(text: str) -> str:
    """Return a text without the secrets that Airflow has registered and passwords in URLs.

    :param text: the text.
    """
    return str(redact(mask_passwords(text)))


def error_text(text: str | None, settings: Settings, max_length: int) -> str | None:
    """Return an error text for the page, or None if there is none or payloads are hidden.

    Errors often contain parts of the payload.

    :param text: the text.
    :param settings: whether payloads are hidden.
    :param max_length: the maximum length.
    """
    if not text or settings.hide_payloads:
        return None
    masked = mask_text(text[: max_length + _MARGIN])
    return masked if len(masked) <= max_length else masked[:max_length] + "…"


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


def dead_letter_row(dead_letter: DeadLetter, settings: Settings) -> dict[str, Any]:
    """Return a dead letter for a list, without its payload.

    :param dead_letter: the dead letter.
    :param settings: whether payloads, and so errors, are hidden.
    """
    return {
        "id": dead_letter.id,
        "job_id": dead_letter.job_id,
        "job_name": dead_letter.job_name,
        "reason": dead_letter.reason,
        "error": error_text(dead_letter.error or dead_letter.detail, settings, _MAX_LINE_LENGTH),
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
        **dead_letter_row(dead_letter, settings),
        "error": error_text(dead_letter.error, settings, MAX_TEXT_LENGTH),
        "detail": error_text(dead_letter.detail, settings, MAX_TEXT_LENGTH),
        "source_id": dead_letter.source_id,
        "created_at": dead_letter.job.created_at_ms if dead_letter.job else None,
        "payload": payload_text(dead_letter.job, settings),
    }


def event_row(event: Event, settings: Settings) -> dict[str, Any]:
    """Return an event; its field names are those of `Event`.

    :param event: the event. The reason of a failed attempt is its error.
    :param settings: whether payloads, and so errors, are hidden.
    """
    return asdict(event) | {"reason": error_text(event.reason, settings, MAX_TEXT_LENGTH)}


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
        "cancelled_at": progress.cancelled_at_ms,
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
