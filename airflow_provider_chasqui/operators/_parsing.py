"""What users write about jobs in a DAG, as templates leave it: read into the queue's own values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy

_BACKOFF_FIELDS = ("delay", "max_delay", "multiplier", "jitter")


def parse_duration(value: Any, name: str) -> timedelta | None:
    """Return a timedelta from a timedelta, or from seconds as a number or text."""
    if value is None or isinstance(value, timedelta):
        return value
    try:
        return timedelta(seconds=float(value))
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"{name} is a timedelta or a number of seconds, not {value!r}"
        ) from None


def parse_datetime(value: Any, name: str) -> datetime | None:
    """Return a datetime from a datetime or from ISO 8601 text."""
    if value is None or isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        raise InvalidArgument(f"{name} is a datetime or ISO 8601 text, not {value!r}") from None


def parse_retry_policy(value: Any) -> RetryPolicy | None:
    """Return a retry policy from one, from a number of attempts, or from a mapping.

    The mapping has `max_attempts` and, for the waits in between, `backoff` ("fixed" or
    "exponential"), `delay`, `max_delay`, `jitter` (seconds or timedelta) and `multiplier`.
    """
    if value is None or isinstance(value, RetryPolicy):
        return value
    if isinstance(value, int):
        return RetryPolicy(max_attempts=value)
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"job_retry is a RetryPolicy, a number or a mapping, not {value!r}")
    fields = dict(value)
    attempts, kind = fields.pop("max_attempts", None), fields.pop("backoff", None)
    unknown = set(fields) - set(_BACKOFF_FIELDS)
    if unknown or (fields and kind is None):
        raise InvalidArgument(
            "job_retry has max_attempts, backoff ('fixed' or 'exponential'), and with a backoff "
            f"{', '.join(_BACKOFF_FIELDS)}; not {value!r}"
        )
    return RetryPolicy(attempts, _parse_backoff(kind, fields) if kind else None)


def _parse_backoff(kind: str, fields: Mapping[str, Any]) -> Backoff:
    def ms(name: str) -> int | None:
        wait = parse_duration(fields.get(name), f"job_retry[{name!r}]")
        return None if wait is None else wait // timedelta(milliseconds=1)

    if kind not in ("fixed", "exponential"):
        raise InvalidArgument(f"a backoff is 'fixed' or 'exponential', not {kind!r}")
    return Backoff(kind, ms("delay") or 0, ms("max_delay"), fields.get("multiplier"), ms("jitter"))


def parse_json(text: Any, name: str) -> Any:
    """Return what the text of a rendered .json file holds."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError as cause:
        raise InvalidArgument(
            f"the file for {name} is not JSON after rendering: {cause}"
        ) from cause


def parse_payloads(values: Any, name: str) -> list[Any]:
    """Return the payloads of a batch as a list; a mapping or text there is a slip."""
    if isinstance(values, str | bytes | Mapping):
        raise InvalidArgument(f"{name} is a list of payloads, not {type(values).__name__}")
    try:
        return list(values)
    except TypeError:
        raise InvalidArgument(
            f"{name} is a list of payloads, not {type(values).__name__}"
        ) from None
