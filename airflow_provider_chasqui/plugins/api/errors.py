"""Errors as the page wants them: a status, the CMQ code and a sentence that says what to do."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse

from airflow_provider_chasqui.core.errors import (
    BadInput,
    ChasquiError,
    DecodeError,
    LoginRefused,
    NotConnected,
    NotPermitted,
    StoreError,
    UnknownBatch,
    UnknownConnection,
    UnknownJob,
    UnknownQueue,
    WrongType,
)

_STATUS: tuple[tuple[type[ChasquiError], int], ...] = (
    (UnknownBatch, 404),
    (UnknownConnection, 404),
    (UnknownJob, 404),
    (UnknownQueue, 404),
    (BadInput, 422),
    (DecodeError, 409),
    (WrongType, 409),
    (NotConnected, 503),
    (LoginRefused, 502),
    (NotPermitted, 502),
    (StoreError, 502),
)


def status_of(error: ChasquiError) -> int:
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def as_json(error: ChasquiError) -> dict[str, str | None]:
    return {"code": error.code, "message": error.message, "queue": error.queue}


async def answer(_request: Request, error: Exception) -> JSONResponse:
    """Return our error as JSON."""
    assert isinstance(error, ChasquiError)
    return JSONResponse({"error": as_json(error)}, status_of(error))
