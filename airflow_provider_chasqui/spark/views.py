"""Spark's types as Arrow's, whichever version of Spark is asked.

Payloads poured into a schema: what does not fit is null, as in Spark's from_json.

What a queue looks like as a table: the columns of each view, and rows made of raw replies.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas import types as spark
from pyspark.sql.types import StructType

from airflow_provider_chasqui.core.batch import parse_batch_job_id
from airflow_provider_chasqui.core.codec import decode_delayed_member
from airflow_provider_chasqui.core.command import as_event
from airflow_provider_chasqui.core.commands import consumer_group, dead_letters
from airflow_provider_chasqui.core.errors import ChasquiError, DecodeError, InvalidArgument
from airflow_provider_chasqui.core.job import InvalidEntry, Job
from airflow_provider_chasqui.spark.options import ReadOptions


def arrow_schema(schema: StructType) -> Any:
    """Return the Arrow schema of a Spark schema; timestamps are in UTC."""
    options: dict[str, Any] = {}
    if "timezone" in signature(spark.to_arrow_schema).parameters:  # since Spark 4.2
        options["timezone"] = "UTC"
    return spark.to_arrow_schema(schema, **options)


Coercer = Callable[[Any], Any]


def coercer(data_type: t.DataType) -> Coercer:
    """Return the function that makes a value of this type out of a payload's, or None."""
    match data_type:
        case t.StructType():
            fields = [(field.name, coercer(field.dataType)) for field in data_type.fields]
            return lambda v: (
                {name: fit(v.get(name)) for name, fit in fields} if isinstance(v, dict) else None
            )
        case t.ArrayType():
            item = coercer(data_type.elementType)
            return lambda v: [item(each) for each in v] if isinstance(v, list) else None
        case t.MapType():
            key, value = coercer(data_type.keyType), coercer(data_type.valueType)
            return lambda v: (
                [(key(k), value(x)) for k, x in v.items() if key(k) is not None]
                if isinstance(v, dict)
                else None
            )
        case t.ByteType() | t.ShortType() | t.IntegerType() | t.LongType():
            top = 2 ** (
                {"byte": 8, "short": 16, "integer": 32, "long": 64}[data_type.typeName()] - 1
            )
            return lambda v: v if type(v) is int and -top <= v < top else None
        case t.FloatType() | t.DoubleType():
            return lambda v: float(v) if type(v) in (int, float) else None
        case t.BooleanType():
            return lambda v: v if isinstance(v, bool) else None
        case t.BinaryType():
            return lambda v: v if isinstance(v, bytes) else None
        case t.DecimalType():
            return lambda v: _coerce_decimal(v, data_type.precision, data_type.scale)
        case t.TimestampType() | t.TimestampNTZType():
            return lambda v: _coerce_timestamp(v, isinstance(data_type, t.TimestampType))
        case t.DateType():
            return _coerce_date
        case t.StringType():
            return _coerce_text
    raise ValueError(f"payloadSchema cannot have a column of type {data_type.simpleString()}")


def _coerce_text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    return str(value) if type(value) in (int, float) else None


def _coerce_decimal(value: Any, precision: int, scale: int) -> Decimal | None:
    if type(value) not in (int, float, str):
        return None
    try:
        number = Decimal(str(value)).quantize(Decimal(1).scaleb(-scale))
    except InvalidOperation:
        return None
    return number if len(number.as_tuple().digits) <= precision else None


def _coerce_timestamp(value: Any, with_timezone: bool) -> datetime | None:
    try:
        if type(value) is int:
            moment = datetime.fromtimestamp(value / 1000, UTC)
        else:
            moment = datetime.fromisoformat(value)
    except (ValueError, TypeError, OverflowError, OSError):
        return None
    if with_timezone:
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment.replace(tzinfo=None)


def _coerce_date(value: Any) -> date | None:
    try:
        return date.fromisoformat(value)
    except (ValueError, TypeError):
        return None


_JOB_COLUMNS = "job_id STRING, job_name STRING, attempt INT, created_at TIMESTAMP, batch_id STRING"
_PAYLOAD_COLUMNS = "payload STRING, payload_raw BINARY"
_VIEW_COLUMNS = {
    "jobs": f"queue_name STRING, entry_id STRING, enqueued_at TIMESTAMP, {_JOB_COLUMNS}, {_PAYLOAD_COLUMNS}",
    "dlq": f"queue_name STRING, entry_id STRING, dead_at TIMESTAMP, {_JOB_COLUMNS}, reason STRING, "
    f"detail STRING, error STRING, attempts INT, source_id STRING, {_PAYLOAD_COLUMNS}",
    "delayed": f"queue_name STRING, run_at TIMESTAMP, {_JOB_COLUMNS}, {_PAYLOAD_COLUMNS}",
    "events": "queue_name STRING, entry_id STRING, emitted_at TIMESTAMP, event STRING, job_id STRING, "
    "job_name STRING, attempt INT, duration_us BIGINT, backoff_ms BIGINT, delay_ms BIGINT, "
    "reason STRING, batch_id STRING",
    "results": f"queue_name STRING, job_id STRING, batch_id STRING, {_PAYLOAD_COLUMNS}",
}
PAYLOAD_STRUCT = "data"

Row = tuple[Any, ...]
# The columns, the payload's bytes if it can be read, and the bytes to show.
ParsedRow = tuple[Row, bytes | None, bytes | None]


def view_columns(options: ReadOptions) -> str:
    """Return the columns of a view as DDL; a payloadSchema adds `data`, the payload as a struct."""
    columns = _VIEW_COLUMNS[options.view]
    if options.payload_schema:
        columns += f", {PAYLOAD_STRUCT} STRUCT<{options.payload_schema}>"
    return columns


def validate_read_schema(options: ReadOptions, schema: StructType) -> StructType:
    """Return the schema to read with; a view has the columns it has."""
    known = [each.split()[0] for each in _VIEW_COLUMNS[options.view].split(", ")]
    wanted = [*known, PAYLOAD_STRUCT] if options.payload_schema else known
    if schema.names != wanted:
        raise InvalidArgument(
            "the columns of a view are fixed: leave out .schema(), use payloadSchema"
        )
    return schema


class RecordBatchBuilder:
    """Makes record batches of a view out of raw replies."""

    def __init__(self, options: ReadOptions, schema: StructType):
        self._queue_name = options.queue_name
        self._schema = arrow_schema(schema)
        self._parse_row: Callable[[Any], ParsedRow] = {
            "jobs": self._parse_job,
            "dlq": self._parse_dead_letter,
            "delayed": self._parse_delayed,
            "events": self._parse_event,
            "results": self._parse_result,
        }[options.view]
        self._has_payload = options.view != "events"
        self._coerce = coercer(schema[PAYLOAD_STRUCT].dataType) if options.payload_schema else None

    def build(self, replies: Sequence[Any]) -> pa.RecordBatch:
        rows = []
        for raw in replies:
            row, body, shown = self._parse_row(raw)
            if self._has_payload:
                value, text = _decode_payload(body)
                row += (text, shown)
                if self._coerce:
                    row += (self._coerce(value),)
            rows.append((self._queue_name, *row))
        columns = zip(*rows, strict=True) if rows else [()] * len(self._schema)
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _parse_job(self, raw: Any) -> ParsedRow:
        entry = consumer_group.parse_entry(raw, 2**62)
        at = _to_micros(int(entry.id.partition("-")[0]))
        if isinstance(entry, InvalidEntry):
            return (entry.id, at, *_job_values(None, entry.job_name)), None, entry.raw
        return (entry.id, at, *_job_values(entry.job)), entry.job.body, entry.job.body

    def _parse_dead_letter(self, raw: Any) -> ParsedRow:
        each = dead_letters.parse_dead_letter(raw)
        row = (
            each.id, _to_micros(dead_letters.dead_lettered_at_ms(each)), *_job_values(each.job, each.job_name),
            each.reason, each.detail, each.error, each.attempts, each.source_id,
        )  # fmt: skip
        body = each.job.body if each.job else None
        return row, body, each.raw if body is None else body

    def _parse_delayed(self, raw: Any) -> ParsedRow:
        member, due_ms = raw
        try:
            job = decode_delayed_member(member)
        except DecodeError:
            return (_to_micros(due_ms), *_job_values(None)), None, member
        return (_to_micros(due_ms), *_job_values(job)), job.body, job.body

    def _parse_event(self, raw: Any) -> ParsedRow:
        each = as_event(raw)
        row = (
            each.entry_id, _to_micros(each.ts_ms), each.name, each.job_id or None,
            each.job_name or None, each.attempt, each.duration_us, each.backoff_ms, each.delay_ms,
            each.reason, _batch_id(each.job_id),
        )  # fmt: skip
        return row, None, None

    def _parse_result(self, raw: Any) -> ParsedRow:
        job_id, body = raw
        return (job_id, _batch_id(job_id)), body, body


def _to_micros(timestamp_ms: int) -> int:
    return timestamp_ms * 1000


def _batch_id(job_id: str) -> str | None:
    place = parse_batch_job_id(job_id)
    return place.batch_id if place else None


def _job_values(job: Job | None, job_name: str = "") -> Row:
    if job is None:
        return (None, job_name or None, None, None, None)
    return (job.id, job.name or None, job.attempt, _to_micros(job.created_at_ms), _batch_id(job.id))


def _decode_payload(body: bytes | None) -> tuple[Any, str | None]:
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
        return value, json.dumps(_to_json_value(value), ensure_ascii=False)


def _to_json_value(value: Any) -> Any:
    """Return a value that JSON can hold: bytes as base64, not-a-number as null, keys as text."""
    match value:
        case dict():
            return {
                key if isinstance(key, str) else json.dumps(_to_json_value(key)): _to_json_value(
                    item
                )
                for key, item in value.items()
            }
        case list() | tuple():
            return [_to_json_value(item) for item in value]
        case bytes():
            return base64.b64encode(value).decode()
        case float() if not math.isfinite(value):
            return None
        case None | bool() | int() | float() | str():
            return value
    return str(value)
