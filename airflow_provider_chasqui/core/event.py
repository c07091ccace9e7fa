"""What happened to a job, as an entry of the events stream says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
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


# An event as the `emit` script takes it: how many arguments, and these in RESP. Two of them are
# written for every job, so those are not assembled field by field.
PackedEvent = tuple[int, bytes]


def pack_event(fields: Sequence[str | int]) -> PackedEvent:
    """Any event, from its fields."""
    return len(fields) + 1, _resp(len(fields), *fields)


def _resp(*parts: str | int) -> bytes:
    raws = [str(part).encode("utf-8", "surrogatepass") for part in parts]
    return b"".join(b"$%d\r\n%b\r\n" % (len(raw), raw) for raw in raws)


_ID_AND_TS = b"$%d\r\n%b\r\n" + _resp("ts") + b"%b"
_NAME = _resp("n") + b"$%d\r\n%b\r\n"
_ATTEMPT = _resp("attempt") + b"%b"
_DURATION = _resp("duration_us") + b"%b"
_WAITING = _resp(6, "e", "waiting", "id") + _ID_AND_TS
_ACTIVE = _resp(8, "e", "active", "id") + _ID_AND_TS + _ATTEMPT
_ACTIVE_NAMED = _resp(10, "e", "active", "id") + _ID_AND_TS + _NAME + _ATTEMPT
_COMPLETED = _resp(10, "e", "completed", "id") + _ID_AND_TS + _ATTEMPT + _DURATION
_COMPLETED_NAMED = _resp(12, "e", "completed", "id") + _ID_AND_TS + _NAME + _ATTEMPT + _DURATION
_RUN = _resp(0) + b"$%d\r\n%b\r\n$%d\r\n%b\r\n%b%b%b%b"


@lru_cache(maxsize=1024)
def _number_resp(number: int) -> bytes:
    return _resp(number)


def packed_waiting(job_id: str, ts_ms: int) -> PackedEvent:
    """The event that a delayed job has become due."""
    raw = job_id.encode()
    return 7, _WAITING % (len(raw), raw, _number_resp(ts_ms))


def packed_active(job_id: str, ts_ms: int, name: str, attempt: int) -> PackedEvent:
    """The event that a run begins."""
    raw, ts, tried = job_id.encode(), _number_resp(ts_ms), _number_resp(attempt)
    if not name:
        return 9, _ACTIVE % (len(raw), raw, ts, tried)
    said = name.encode()
    return 11, _ACTIVE_NAMED % (len(raw), raw, ts, len(said), said, tried)


def packed_completed(
    job_id: str, ts_ms: int, name: str, attempt: int, duration_us: int
) -> PackedEvent:
    """The event that a run ended well."""
    raw, ts, tried = job_id.encode(), _number_resp(ts_ms), _number_resp(attempt)
    took = _number_resp(duration_us)
    if not name:
        return 11, _COMPLETED % (len(raw), raw, ts, tried, took)
    said = name.encode()
    return 13, _COMPLETED_NAMED % (len(raw), raw, ts, len(said), said, tried, took)


def packed_run(
    job_id: str, name: str, attempt: int, ended_ms: int, duration_us: int
) -> PackedEvent:
    """Both events of a run that ended well, one behind the other.

    Only what differs is sent, the script knows the rest: two fifths of the bytes of two events.
    """
    raw, said = job_id.encode(), name.encode()
    began_ms = ended_ms - duration_us // 1000
    return 7, _RUN % (
        len(raw), raw, len(said), said, _number_resp(attempt), _number_resp(began_ms),
        _number_resp(ended_ms), _number_resp(duration_us),
    )  # fmt: skip
