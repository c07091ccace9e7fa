"""What a queue looks like as a table: the columns of each view, and rows made of raw replies."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from airflow_provider_chasqui.core.batch import place_of
from airflow_provider_chasqui.core.codec import decode_member
from airflow_provider_chasqui.core.errors import BadInput, ChasquiError, DecodeError
from airflow_provider_chasqui.core.job import Job, Rejected
from airflow_provider_chasqui.core.ops import delivery, letters
from airflow_provider_chasqui.core.replies import event
from airflow_provider_chasqui.spark.arrow import arrow_schema
from airflow_provider_chasqui.spark.fitting import fitting
from airflow_provider_chasqui.spark.options import ReadOptions

_JOB = "job_id STRING, name STRING, attempt INT, created_at TIMESTAMP, batch STRING"
_BODY = "payload STRING, payload_raw BINARY"
_COLUMNS = {
    "jobs": f"queue STRING, entry_id STRING, enqueued_at TIMESTAMP, {_JOB}, {_BODY}",
    "dlq": f"queue STRING, entry_id STRING, dead_at TIMESTAMP, {_JOB}, reason STRING, "
    f"detail STRING, error STRING, attempts INT, source_id STRING, {_BODY}",
    "delayed": f"queue STRING, run_at TIMESTAMP, {_JOB}, {_BODY}",
    "events": "queue STRING, entry_id STRING, at TIMESTAMP, event STRING, job_id STRING, "
    "name STRING, attempt INT, duration_us BIGINT, backoff_ms BIGINT, delay_ms BIGINT, "
    "reason STRING, batch STRING",
    "results": f"queue STRING, job_id STRING, batch STRING, {_BODY}",
}
STRUCT = "data"

Row = tuple[Any, ...]
# The columns, the payload's bytes if it can be read, and the bytes to show.
Made = tuple[Row, bytes | None, bytes | None]


def columns_of(options: ReadOptions) -> str:
    """Return the columns of a view as DDL; a payloadSchema adds `data`, the payload as a struct."""
    columns = _COLUMNS[options.view]
    if options.payload_schema:
        columns += f", {STRUCT} STRUCT<{options.payload_schema}>"
    return columns


def check_schema(options: ReadOptions, schema: StructType) -> StructType:
    """Return the schema to read with; a view has the columns it has."""
    known = [each.split()[0] for each in _COLUMNS[options.view].split(", ")]
    wanted = [*known, STRUCT] if options.payload_schema else known
    if schema.names != wanted:
        raise BadInput("the columns of a view are fixed: leave out .schema(), use payloadSchema")
    return schema


class Table:
    """Makes record batches of a view out of raw replies."""

    def __init__(self, options: ReadOptions, schema: StructType):
        self._queue = options.queue
        self._schema = arrow_schema(schema)
        self._row: Callable[[Any], Made] = {
            "jobs": self._job,
            "dlq": self._letter,
            "delayed": self._member,
            "events": self._event,
            "results": self._result,
        }[options.view]
        self._has_payload = options.view != "events"
        self._fit = fitting(schema[STRUCT].dataType) if options.payload_schema else None

    def batch(self, raws: Sequence[Any]) -> pa.RecordBatch:
        rows = []
        for raw in raws:
            row, body, shown = self._row(raw)
            if self._has_payload:
                value, text = _payload(body)
                row += (text, shown)
                if self._fit:
                    row += (self._fit(value),)
            rows.append((self._queue, *row))
        columns = zip(*rows, strict=True) if rows else [()] * len(self._schema)
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _job(self, raw: Any) -> Made:
        entry = delivery.delivery(raw, 2**62)
        at = _micros(int(entry.id.partition("-")[0]))
        if isinstance(entry, Rejected):
            return (entry.id, at, *_columns(None, entry.name)), None, entry.raw
        return (entry.id, at, *_columns(entry.job)), entry.job.body, entry.job.body

    def _letter(self, raw: Any) -> Made:
        each = letters.letter(raw)
        row = (
            each.id, _micros(letters.buried_at_ms(each)), *_columns(each.job, each.name),
            each.reason, each.detail, each.error, each.attempts, each.source_id,
        )  # fmt: skip
        body = each.job.body if each.job else None
        return row, body, each.raw if body is None else body

    def _member(self, raw: Any) -> Made:
        member, due_ms = raw
        try:
            job = decode_member(member)
        except DecodeError:
            return (_micros(due_ms), *_columns(None)), None, member
        return (_micros(due_ms), *_columns(job)), job.body, job.body

    def _event(self, raw: Any) -> Made:
        each = event(raw)
        row = (
            each.entry_id, _micros(each.ts_ms), each.name, each.job_id or None,
            each.job_name or None, each.attempt, each.duration_us, each.backoff_ms, each.delay_ms,
            each.reason, _batch(each.job_id),
        )  # fmt: skip
        return row, None, None

    def _result(self, raw: Any) -> Made:
        job_id, body = raw
        return (job_id, _batch(job_id)), body, body


def _micros(at_ms: int) -> int:
    return at_ms * 1000


def _batch(job_id: str) -> str | None:
    place = place_of(job_id)
    return place.batch if place else None


def _columns(job: Job | None, name: str = "") -> Row:
    if job is None:
        return (None, name or None, None, None, None)
    return (job.id, job.name or None, job.attempt, _micros(job.created_at_ms), _batch(job.id))


def _payload(body: bytes | None) -> tuple[Any, str | None]:
    """Return the payload and its JSON; what cannot be read is null, its bytes are kept raw."""
    if body is None:
        return None, None
    try:
        value = Job("", body, 0).payload
    except ChasquiError:
        return None, None
    try:
        return value, json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        return value, json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: bytes as base64, not-a-number as null, keys as text."""
    match value:
        case dict():
            return {
                key if isinstance(key, str) else json.dumps(_plain(key)): _plain(item)
                for key, item in value.items()
            }
        case list() | tuple():
            return [_plain(item) for item in value]
        case bytes():
            return base64.b64encode(value).decode()
        case float() if not math.isfinite(value):
            return None
        case None | bool() | int() | float() | str():
            return value
    return str(value)
