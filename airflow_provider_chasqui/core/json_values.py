"""Conversion of payloads and results to JSON, the same in the CLI, the page, XCom and Spark."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.job import Job

_MAX_DEPTH = 200
_MASK = "***"
_NONE: frozenset[str] = frozenset()


def to_jsonable(value: Any, masked_fields: frozenset[str] = _NONE, *, depth: int = 0) -> Any:
    """Return a value that every JSON encoder accepts.

    Bytes become `{"base64": "..."}`, NaN and the infinities become strings, keys that are not text
    become text, and a value nested more than 200 levels deep becomes a string that says so.

    :param value: any value that MessagePack can carry.
    :param masked_fields: lower-case names of mapping fields whose values become `***`.
    :param depth: the current nesting depth; callers leave it at 0.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(value).decode()}
    if depth >= _MAX_DEPTH:
        return "nested too deeply"
    if isinstance(value, Mapping):
        converted = {}
        for field, item in value.items():
            name = _field_name(field)
            masked = name.lower() in masked_fields
            converted[name] = _MASK if masked else to_jsonable(item, masked_fields, depth=depth + 1)
        return converted
    if isinstance(value, list | tuple | set | frozenset):
        return [to_jsonable(item, masked_fields, depth=depth + 1) for item in value]
    return str(value)


def _field_name(field: Any) -> str:
    if isinstance(field, bytes):
        return base64.b64encode(field).decode()
    return field.encode("utf-8", "replace").decode() if isinstance(field, str) else str(field)


def job_payload(job: Job) -> Any:
    """Return a job's payload as JSON values, or its raw bytes if they are not MessagePack.

    :param job: the job.
    """
    try:
        return to_jsonable(job.payload)
    except DecodeError:
        return to_jsonable(job.body)
