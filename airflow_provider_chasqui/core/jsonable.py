"""Any payload as JSON: what JSON has no word for is said in one agreed way."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.job import Job

_DEEPEST = 200


def jsonable(value: Any, depth: int = 0) -> Any:
    """Return a value that every JSON encoder takes, whatever MessagePack carried.

    Bytes become `{"base64": "..."}`, keys that are not text become text, NaN and the infinities
    become strings, and what is nested too deeply is cut off.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(value).decode()}
    if depth >= _DEEPEST:
        return "nested too deeply"
    if isinstance(value, Mapping):
        return {_key(key): jsonable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(item, depth + 1) for item in value]
    return str(value)


def _key(key: Any) -> str:
    if isinstance(key, bytes):
        return base64.b64encode(key).decode()
    return key.encode("utf-8", "replace").decode() if isinstance(key, str) else str(key)


def payload_of(job: Job) -> Any:
    """Return a job's payload as JSON; bytes that are not MessagePack are shown as they are."""
    try:
        return jsonable(job.payload)
    except DecodeError:
        return jsonable(job.body)
