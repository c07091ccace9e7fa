"""What happened to a job, as an entry of the events stream says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NAMES = frozenset(
    {"waiting", "active", "completed", "failed", "retry-scheduled", "delayed", "dlq", "drained"}
)

# A job that is in one of these states will not run again by itself.
FINAL = frozenset({"completed", "dlq"})

EVENTS_KEPT = 100_000


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `attempt` counts from 1 here, as the wire does."""

    entry_id: str
    name: str
    job_id: str
    ts_ms: int
    job_name: str = ""
    attempt: int | None = None
    duration_us: int | None = None
    backoff_ms: int | None = None
    delay_ms: int | None = None
    reason: str | None = None


def parse_event(entry_id: str, fields: Mapping[str, str]) -> Event:
    """Return the event in a stream entry; unknown fields and bad numbers are passed over."""
    return Event(
        entry_id,
        fields.get("e", ""),
        fields.get("id", ""),
        _number(fields.get("ts")) or 0,
        fields.get("n", ""),
        _number(fields.get("attempt")),
        _number(fields.get("duration_us")),
        _number(fields.get("backoff_ms")),
        _number(fields.get("delay_ms")),
        fields.get("reason"),
    )


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        return None


def event_fields(
    name: str, job_id: str, ts_ms: int, job_name: str = "", **extras: Any
) -> list[str | int]:
    """Return the fields of an event in the wire's order."""
    fields: list[str | int] = ["e", name, "id", job_id, "ts", ts_ms]
    if job_name:
        fields += ["n", job_name]
    for key, value in extras.items():
        fields += [key, value]
    return fields
