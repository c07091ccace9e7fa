"""Conversion of payloads and results to JSON, the same in the CLI, the page, XCom and Spark."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.job import Job

_MAX_DEPTH = 200
_MASK = "***"
# Fields of a mapping that has a name and a value, such as an environment variable or a header.
_NAME_FIELDS = ("name", "key")

IsSecret = Callable[[str], bool]


def to_jsonable(value: Any, is_secret: IsSecret | None = None, *, depth: int = 0) -> Any:
    """Return a value that every JSON encoder accepts.

    Bytes become `{"base64": "..."}`, NaN and the infinities become strings, keys that are not text
    become text, and a value nested more than 200 levels deep becomes a string that says so.

    :param value: any value that MessagePack can carry.
    :param is_secret: returns whether the value of a field with this name becomes `***`; None masks
        nothing. A pair of a name and a value counts as a field.
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
    if is_secret is not None:
        value = _mask_secrets(value, is_secret)
    if isinstance(value, Mapping):
        return {
            _field_name(field): to_jsonable(item, is_secret, depth=depth + 1)
            for field, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [to_jsonable(item, is_secret, depth=depth + 1) for item in value]
    return str(value)


def _mask_secrets(value: Any, is_secret: IsSecret) -> Any:
    """Return a mapping or a pair with the values of its secret fields replaced."""
    if isinstance(value, Mapping):
        named = any(
            isinstance(value.get(field), str) and is_secret(value[field]) for field in _NAME_FIELDS
        )
        return {
            field: _MASK if is_secret(_text(field)) or (named and field == "value") else item
            for field, item in value.items()
        }
    if isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[0], str | bytes):
        return [value[0], _MASK] if is_secret(_text(value[0])) else value
    return value


def _text(field: Any) -> str:
    return field.decode("utf-8", "replace") if isinstance(field, bytes) else str(field)


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
