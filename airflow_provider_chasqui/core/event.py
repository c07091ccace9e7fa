"""What happened to a job, as an entry of the events stream says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

EVENT_NAMES = frozenset(
    {"waiting", "active", "completed", "failed", "retry-scheduled", "delayed", "dlq", "drained"}
)

# A job that is in one of these states will not run again by itself.
FINAL_EVENTS = frozenset({"completed", "dlq"})

DEFAULT_MAX_EVENTS = 100_000


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
        _parse_int(fields.get("ts")) or 0,
        fields.get("n", ""),
        _parse_int(fields.get("attempt")),
        _parse_int(fields.get("duration_us")),
        _parse_int(fields.get("backoff_ms")),
        _parse_int(fields.get("delay_ms")),
        fields.get("reason"),
    )


def _parse_int(text: str | None) -> int | None:
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


# An event as the `emit` script takes it: how many arguments, and these in RESP. Two of them are
# written for every job, so those are not assembled field by field.
EncodedEvent = tuple[int, bytes]


def encode_event(fields: Sequence[str | int]) -> EncodedEvent:
    """Any event, from its fields."""
    return len(fields) + 1, _encode_resp(len(fields), *fields)


def _encode_resp(*values: str | int) -> bytes:
    raws = [str(part).encode("utf-8", "surrogatepass") for part in values]
    return b"".join(b"$%d\r\n%b\r\n" % (len(raw), raw) for raw in raws)


_ID_AND_TS_FIELDS = b"$%d\r\n%b\r\n" + _encode_resp("ts") + b"%b"
_JOB_NAME_FIELD = _encode_resp("n") + b"$%d\r\n%b\r\n"
_ATTEMPT_FIELD = _encode_resp("attempt") + b"%b"
_DURATION_FIELD = _encode_resp("duration_us") + b"%b"
_WAITING_TEMPLATE = _encode_resp(6, "e", "waiting", "id") + _ID_AND_TS_FIELDS
_ACTIVE_TEMPLATE = _encode_resp(8, "e", "active", "id") + _ID_AND_TS_FIELDS + _ATTEMPT_FIELD
_ACTIVE_NAMED_TEMPLATE = (
    _encode_resp(10, "e", "active", "id") + _ID_AND_TS_FIELDS + _JOB_NAME_FIELD + _ATTEMPT_FIELD
)
_COMPLETED_TEMPLATE = (
    _encode_resp(10, "e", "completed", "id") + _ID_AND_TS_FIELDS + _ATTEMPT_FIELD + _DURATION_FIELD
)
_COMPLETED_NAMED_TEMPLATE = (
    _encode_resp(12, "e", "completed", "id")
    + _ID_AND_TS_FIELDS
    + _JOB_NAME_FIELD
    + _ATTEMPT_FIELD
    + _DURATION_FIELD
)
_RUN_TEMPLATE = _encode_resp(0) + b"$%d\r\n%b\r\n$%d\r\n%b\r\n%b%b%b%b"


@lru_cache(maxsize=1024)
def _encode_int(number: int) -> bytes:
    return _encode_resp(number)


def encode_waiting(job_id: str, ts_ms: int) -> EncodedEvent:
    """The event that a delayed job has become due."""
    raw = job_id.encode()
    return 7, _WAITING_TEMPLATE % (len(raw), raw, _encode_int(ts_ms))


def encode_active(job_id: str, ts_ms: int, job_name: str, attempt: int) -> EncodedEvent:
    """The event that a run begins."""
    raw, ts, tried = job_id.encode(), _encode_int(ts_ms), _encode_int(attempt)
    if not job_name:
        return 9, _ACTIVE_TEMPLATE % (len(raw), raw, ts, tried)
    said = job_name.encode()
    return 11, _ACTIVE_NAMED_TEMPLATE % (len(raw), raw, ts, len(said), said, tried)


def encode_completed(
    job_id: str, ts_ms: int, job_name: str, attempt: int, duration_us: int
) -> EncodedEvent:
    """The event that a run ended well."""
    raw, ts, tried = job_id.encode(), _encode_int(ts_ms), _encode_int(attempt)
    took = _encode_int(duration_us)
    if not job_name:
        return 11, _COMPLETED_TEMPLATE % (len(raw), raw, ts, tried, took)
    said = job_name.encode()
    return 13, _COMPLETED_NAMED_TEMPLATE % (len(raw), raw, ts, len(said), said, tried, took)


def encode_run_events(
    job_id: str, job_name: str, attempt: int, finished_ms: int, duration_us: int
) -> EncodedEvent:
    """Both events of a run that ended well, one behind the other.

    Only what differs is sent, the script knows the rest: two fifths of the bytes of two events.
    """
    raw, said = job_id.encode(), job_name.encode()
    began_ms = finished_ms - duration_us // 1000
    return 7, _RUN_TEMPLATE % (
        len(raw), raw, len(said), said, _encode_int(attempt), _encode_int(began_ms),
        _encode_int(finished_ms), _encode_int(duration_us),
    )  # fmt: skip
