"""Job events: the entries of a queue's events stream, parsed and encoded.

The fields and their order are ChasquiMQ's. `active` and `completed` are written for every job, so
their encoders fill byte templates instead of encoding field by field; see docs/performance.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from airflow_provider_chasqui.core.resp import BULK, encode_args

EVENT_NAMES = frozenset(
    {
        "waiting",
        "active",
        "completed",
        "failed",
        "retry-scheduled",
        "delayed",
        "dlq",
        "drained",
        # Emitted by ChasquiMQ after 1.3.0.
        "progress",
        "stalled",
        "rate-limited",
    }
)

# After one of these events a job does not run again unless it is replayed.
FINAL_EVENTS = frozenset({"completed", "dlq"})

DEFAULT_MAX_EVENTS = 100_000


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the events stream.

    :param entry_id: the id of the stream entry.
    :param name: the event, one of `EVENT_NAMES` or a name of a newer producer.
    :param job_id: the id of the job; empty for `drained`, which concerns the queue.
    :param ts_ms: when the event happened, in milliseconds since the epoch.
    :param job_name: the name of the job; empty if it has none.
    :param attempt: the number of the attempt, counted from 1 (`Job.attempt` counts from 0).
    :param duration_us: how long the handler ran, in microseconds.
    :param backoff_ms: the delay before the next attempt, in milliseconds.
    :param delay_ms: the delay that a new job was added with, in milliseconds.
    :param reason: why the attempt failed or why the job was moved to the dead-letter queue.
    """

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
    """Return the event in a stream entry. Unknown fields and invalid numbers are ignored.

    :param entry_id: the id of the stream entry.
    :param fields: the fields of the stream entry.
    :return: the event; a missing or invalid field has its default value.
    """
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
    """Return the fields of an event, names and values alternating, in ChasquiMQ's order.

    :param name: the event, one of `EVENT_NAMES`.
    :param job_id: the id of the job.
    :param ts_ms: when the event happened, in milliseconds since the epoch.
    :param job_name: the name of the job; left out if it is empty.
    :param extras: further fields, written in the given order.
    :return: the flat list of field names and values.
    """
    fields: list[str | int] = ["e", name, "id", job_id, "ts", ts_ms]
    if job_name:
        fields += ["n", job_name]
    for key, value in extras.items():
        fields += [key, value]
    return fields


# An event as the `emit` script takes it: the number of arguments, and the arguments in RESP.
EncodedEvent = tuple[int, bytes]


def encode_event(fields: Sequence[str | int]) -> EncodedEvent:
    """Return an event encoded for the `emit` script.

    :param fields: the fields as returned by `event_fields`.
    """
    return len(fields) + 1, encode_args(len(fields), *fields)


_ID_AND_TS_FIELDS = BULK + encode_args("ts") + b"%b"
_JOB_NAME_FIELD = encode_args("n") + BULK
_ATTEMPT_FIELD = encode_args("attempt") + b"%b"
_DURATION_FIELD = encode_args("duration_us") + b"%b"
_WAITING_TEMPLATE = encode_args(6, "e", "waiting", "id") + _ID_AND_TS_FIELDS
_ACTIVE_TEMPLATE = encode_args(8, "e", "active", "id") + _ID_AND_TS_FIELDS + _ATTEMPT_FIELD
_ACTIVE_NAMED_TEMPLATE = (
    encode_args(10, "e", "active", "id") + _ID_AND_TS_FIELDS + _JOB_NAME_FIELD + _ATTEMPT_FIELD
)
_COMPLETED_TEMPLATE = (
    encode_args(10, "e", "completed", "id") + _ID_AND_TS_FIELDS + _ATTEMPT_FIELD + _DURATION_FIELD
)
_COMPLETED_NAMED_TEMPLATE = (
    encode_args(12, "e", "completed", "id")
    + _ID_AND_TS_FIELDS
    + _JOB_NAME_FIELD
    + _ATTEMPT_FIELD
    + _DURATION_FIELD
)
_RUN_TEMPLATE = encode_args(0) + BULK + BULK + b"%b%b%b%b"


@lru_cache(maxsize=1024)
def _encode_int(number: int) -> bytes:
    return encode_args(number)


def encode_waiting(job_id: str, ts_ms: int) -> EncodedEvent:
    """Return the encoded `waiting` event: a delayed job is due and was moved to the stream.

    :param job_id: the id of the job.
    :param ts_ms: when it was moved, in milliseconds since the epoch.
    """
    id_bytes = job_id.encode()
    return 7, _WAITING_TEMPLATE % (len(id_bytes), id_bytes, _encode_int(ts_ms))


def encode_active(job_id: str, ts_ms: int, job_name: str, attempt: int) -> EncodedEvent:
    """Return the encoded `active` event: a handler was started.

    :param job_id: the id of the job.
    :param ts_ms: when the handler was started, in milliseconds since the epoch.
    :param job_name: the name of the job; left out if it is empty.
    :param attempt: the number of the attempt, counted from 1.
    """
    id_bytes, ts, attempt_bytes = job_id.encode(), _encode_int(ts_ms), _encode_int(attempt)
    if not job_name:
        return 9, _ACTIVE_TEMPLATE % (len(id_bytes), id_bytes, ts, attempt_bytes)
    name_bytes = job_name.encode()
    return 11, _ACTIVE_NAMED_TEMPLATE % (
        len(id_bytes),
        id_bytes,
        ts,
        len(name_bytes),
        name_bytes,
        attempt_bytes,
    )


def encode_completed(
    job_id: str, ts_ms: int, job_name: str, attempt: int, duration_us: int
) -> EncodedEvent:
    """Return the encoded `completed` event: a handler returned.

    :param job_id: the id of the job.
    :param ts_ms: when the handler returned, in milliseconds since the epoch.
    :param job_name: the name of the job; left out if it is empty.
    :param attempt: the number of the attempt, counted from 1.
    :param duration_us: how long the handler ran, in microseconds.
    """
    id_bytes, ts, attempt_bytes = job_id.encode(), _encode_int(ts_ms), _encode_int(attempt)
    duration = _encode_int(duration_us)
    if not job_name:
        return 11, _COMPLETED_TEMPLATE % (len(id_bytes), id_bytes, ts, attempt_bytes, duration)
    name_bytes = job_name.encode()
    return 13, _COMPLETED_NAMED_TEMPLATE % (
        len(id_bytes),
        id_bytes,
        ts,
        len(name_bytes),
        name_bytes,
        attempt_bytes,
        duration,
    )


def encode_run_events(
    job_id: str, job_name: str, attempt: int, finished_ms: int, duration_us: int
) -> EncodedEvent:
    """Return the `active` and `completed` events of one run, encoded together.

    Only the values are sent. The `emit` script adds the field names and writes two events.

    :param job_id: the id of the job.
    :param job_name: the name of the job; left out if it is empty.
    :param attempt: the number of the attempt, counted from 1.
    :param finished_ms: when the handler returned, in milliseconds since the epoch.
    :param duration_us: how long the handler ran, in microseconds.
    """
    id_bytes, name_bytes = job_id.encode(), job_name.encode()
    return 7, _RUN_TEMPLATE % (
        len(id_bytes),
        id_bytes,
        len(name_bytes),
        name_bytes,
        _encode_int(attempt),
        _encode_int(finished_ms - duration_us // 1000),
        _encode_int(finished_ms),
        _encode_int(duration_us),
    )
