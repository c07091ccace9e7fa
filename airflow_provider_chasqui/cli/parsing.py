"""Times on the command line: spans such as 1h30m, and moments in ISO 8601."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import typer

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_MAX_DURATION = timedelta(days=36500)


def parse_duration(text: str | timedelta) -> timedelta:
    """Read a span: 500ms, 30s, 5m, 1h30m, 7d; a bare number is seconds."""
    if isinstance(text, timedelta):  # a default, which needs no reading
        return text
    said = text.strip().lower()
    if re.fullmatch(r"\d{1,12}(\.\d{1,6})?", said):
        said += "s"
    pieces = _DURATION_PART.findall(said)
    if not pieces or "".join(number + unit for number, unit in pieces) != said or len(said) > 40:
        raise typer.BadParameter(f"{text!r} is no span of time; write 500ms, 30s, 5m, 1h30m or 7d")
    seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in pieces)
    if seconds > _MAX_DURATION.total_seconds():
        raise typer.BadParameter(f"{text!r} is longer than a hundred years")
    return timedelta(seconds=seconds)


def parse_datetime(text: str | datetime) -> datetime:
    """Read a moment: 2030-01-31T12:00 (UTC if it says no zone)."""
    if isinstance(text, datetime):
        return text
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no moment; write 2030-01-31T12:00 or 2030-01-31T12:00+02:00"
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def parse_payload(text: str) -> Any:
    """Read a payload: JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise typer.BadParameter(
            f'the payload is not JSON ({cause}); quote it, as in \'{{"to": "ada"}}\' or \'"text"\''
        ) from None


def format_duration(ms: float | None) -> str:
    """Say a span of ms in one or two units, as a person would."""
    if ms is None:
        return "-"
    seconds = ms / 1000
    if seconds < 0:
        return f"-{format_duration(-ms)}"
    if seconds < 1:
        return f"{ms:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02}m"
    return f"{hours // 24}d{hours % 24}h"


def format_timestamp(ms: int | None) -> str:
    """Say a moment in ms as ISO 8601 in UTC; what is no time of this world as the number."""
    if ms is None:
        return "-"
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(ms)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}Z"
