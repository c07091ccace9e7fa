"""What users write about jobs in a DAG, as templates leave it: read into the queue's own values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_chasqui.core.errors import BadInput
from airflow_provider_chasqui.core.policy import Backoff, RetryPolicy

_BACKOFF = ("delay", "max_delay", "multiplier", "jitter")


def span(value: Any, what: str) -> timedelta | None:
    """Return a timedelta from a timedelta, or from seconds as a number or text."""
    if value is None or isinstance(value, timedelta):
        return value
    try:
        return timedelta(seconds=float(value))
    except (TypeError, ValueError):
        raise BadInput(f"{what} is a timedelta or a number of seconds, not {value!r}") from None


def instant(value: Any, what: str) -> datetime | None:
    """Return a datetime from a datetime or from ISO 8601 text."""
    if value is None or isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        raise BadInput(f"{what} is a datetime or ISO 8601 text, not {value!r}") from None


def retry(value: Any) -> RetryPolicy | None:
    """Return a retry policy from one, from a number of attempts, or from a mapping.

    The mapping has `max_attempts` and, for the waits in between, `backoff` ("fixed" or
    "exponential"), `delay`, `max_delay`, `jitter` (seconds or timedelta) and `multiplier`.
    """
    if value is None or isinstance(value, RetryPolicy):
        return value
    if isinstance(value, int):
        return RetryPolicy(max_attempts=value)
    if not isinstance(value, Mapping):
        raise BadInput(f"job_retry is a RetryPolicy, a number or a mapping, not {value!r}")
    fields = dict(value)
    attempts, kind = fields.pop("max_attempts", None), fields.pop("backoff", None)
    unknown = set(fields) - set(_BACKOFF)
    if unknown or (fields and kind is None):
        raise BadInput(
            "job_retry has max_attempts, backoff ('fixed' or 'exponential'), and with a backoff "
            f"{', '.join(_BACKOFF)}; not {value!r}"
        )
    return RetryPolicy(attempts, _backoff(kind, fields) if kind else None)


def _backoff(kind: str, fields: Mapping[str, Any]) -> Backoff:
    def ms(name: str) -> int | None:
        wait = span(fields.get(name), f"job_retry[{name!r}]")
        return None if wait is None else wait // timedelta(milliseconds=1)

    if kind not in ("fixed", "exponential"):
        raise BadInput(f"a backoff is 'fixed' or 'exponential', not {kind!r}")
    return Backoff(kind, ms("delay") or 0, ms("max_delay"), fields.get("multiplier"), ms("jitter"))


def from_file(text: Any, what: str) -> Any:
    """Return what the text of a rendered .json file holds."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError as cause:
        raise BadInput(f"the file for {what} is not JSON after rendering: {cause}") from cause


def listed(values: Any, what: str) -> list[Any]:
    """Return the payloads of a batch as a list; a mapping or text there is a slip."""
    if isinstance(values, str | bytes | Mapping):
        raise BadInput(f"{what} is a list of payloads, not {type(values).__name__}")
    try:
        return list(values)
    except TypeError:
        raise BadInput(f"{what} is a list of payloads, not {type(values).__name__}") from None
