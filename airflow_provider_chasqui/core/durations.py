"""Durations and timestamps as text: the one grammar of the CLI, Spark options and templates."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, overload

from airflow_provider_chasqui.core.errors import InvalidArgument

MILLISECOND = timedelta(milliseconds=1)
_MAX_DURATION = timedelta(days=36_500)
_MAX_TEXT = 40
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_COMPONENT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])\s*")
_SECONDS = re.compile(r"\d{1,12}(\.\d{1,6})?")


@overload
def to_ms(duration: timedelta) -> int: ...
@overload
def to_ms(duration: None) -> None: ...
@overload
def to_ms(duration: timedelta | None) -> int | None: ...
def to_ms(duration: timedelta | None) -> int | None:
    """Return a duration in integer milliseconds, rounded down; None for None.

    :param duration: the duration.
    :raises InvalidArgument: if it is not a `timedelta`.
    """
    if duration is None:
        return None
    if not isinstance(duration, timedelta):
        raise InvalidArgument(f"a duration must be a timedelta, not {type(duration).__name__}")
    return duration // MILLISECOND


def parse_duration(value: Any, name: str = "duration") -> timedelta:
    """Return a `timedelta` from a `timedelta`, a number of seconds, or text such as `1h30m`.

    Text is one or more numbers with a unit (ms, s, m, h, d, w). A number without a unit is in
    seconds.

    :param value: the duration.
    :param name: the name of the argument, for the error message.
    :raises InvalidArgument: if the value is not a duration, is negative as text, or is longer than
        a hundred years.
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidArgument(_expected(value, name))
    text = str(value).strip().lower()
    seconds = float(text) if _SECONDS.fullmatch(text) else _parse_components(text)
    if seconds is None:
        raise InvalidArgument(_expected(value, name))
    if seconds > _MAX_DURATION.total_seconds():
        raise InvalidArgument(f"{name} must be at most a hundred years, not {value!r}")
    return timedelta(seconds=seconds)


def parse_optional_duration(value: Any, name: str = "duration") -> timedelta | None:
    """Return `parse_duration(value, name)`, or None if the value is None."""
    return None if value is None else parse_duration(value, name)


def _parse_components(text: str) -> float | None:
    components = _COMPONENT.findall(text)
    if not components or len(text) > _MAX_TEXT or _COMPONENT.sub("", text):
        return None
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in components)


def _expected(value: Any, name: str) -> str:
    return (
        f"{name} must be a timedelta, a number of seconds or text such as 500ms, 30s, 1h30m or 7d; "
        f"not {value!r}"
    )


def format_duration(duration_ms: float | None) -> str:
    """Return a duration for people, in one or two units; `-` if it is None.

    :param duration_ms: the duration in milliseconds.
    """
    if duration_ms is None:
        return "-"
    if duration_ms < 0:
        return f"-{format_duration(-duration_ms)}"
    if duration_ms < 1000:
        return f"{duration_ms:.0f}ms"
    if duration_ms < 60_000:
        return f"{duration_ms / 1000:.1f}s"
    minutes, seconds = divmod(int(duration_ms / 1000), 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02}m"
    return f"{hours // 24}d{hours % 24}h"


def parse_timestamp(value: Any, name: str = "timestamp") -> datetime:
    """Return a `datetime` with a time zone from a `datetime` or from ISO 8601 text.

    Text without a time zone is UTC. A `datetime` is returned unchanged.

    :param value: the timestamp.
    :param name: the name of the argument, for the error message.
    :raises InvalidArgument: if the value is neither.
    """
    if isinstance(value, datetime):
        return value
    try:
        timestamp = datetime.fromisoformat(str(value).strip())
    except ValueError:
        raise InvalidArgument(
            f"{name} must be a datetime or ISO 8601 text such as 2030-01-31T12:00+02:00, "
            f"not {value!r}"
        ) from None
    return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)


def format_timestamp(timestamp_ms: int | None) -> str:
    """Return a timestamp in ISO 8601 (UTC, milliseconds), or the number if it is out of range.

    :param timestamp_ms: milliseconds since the epoch, or None for `-`.
    """
    if timestamp_ms is None:
        return "-"
    try:
        timestamp = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return timestamp.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp.microsecond // 1000:03}Z"
