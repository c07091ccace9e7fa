"""Views of a queue as tables: the columns of each view, and Arrow record batches of raw replies.

With the option payloadSchema, payloads are coerced to a Spark schema. Values that do not match
become null, as in Spark's `from_json`.
"""

from __future__ import annotations

import json
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
from airflow_provider_chasqui.core.json_values import to_jsonable
from airflow_provider_chasqui.core.stream_id import StreamId
from airflow_provider_chasqui.spark.options import ReadOptions


def arrow_schema(schema: StructType) -> Any:
    """Return the Arrow schema of a Spark schema; timestamps are in UTC."""
    options: dict[str, Any] = {}
    if "timezone" in signature(spark.to_arrow_schema).parameters:  # since Spark 4.2
        options["timezone"] = "UTC"
    return spark.to_arrow_schema(schema, **options)


Coercer = Callable[[Any], Any]


def coercer(data_type: t.DataType) -> Coercer:
    """Return a function that converts a payload value to a type, or to None if it does not match.

    :param data_type: the Spark type.
    :raises ValueError: if payloadSchema does not support the type.
    """
    match data_type:
        case t.StructType():
            fields = [(field.name, coercer(field.dataType)) for field in data_type.fields]
            return lambda v: (
                {name: coerce(v.get(name)) for name, coerce in fields}
                if isinstance(v, dict)
                else None
            )
        case t.ArrayType():
            item = coercer(data_type.elementType)
            return lambda v: [item(element) for element in v] if isinstance(v, list) else None
        case t.MapType():
            key, value = coercer(data_type.keyType), coercer(data_type.valueType)
            return lambda v: (
                [(key(k), value(x)) for k, x in v.items() if key(k) is not None]
                if isinstance(v, dict)
                else None
            )
        case t.ByteType() | t.ShortType() | t.IntegerType() | t.LongType():
            bits = {"byte": 8, "short": 16, "integer": 32, "long": 64}[data_type.typeName()]
            bound = 2 ** (bits - 1)
            return lambda v: v if type(v) is int and -bound <= v < bound else None
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
    raise ValueError(f"payloadSchema does not support the type {data_type.simpleString()}")


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
            timestamp = datetime.fromtimestamp(value / 1000, UTC)
        else:
            timestamp = datetime.fromisoformat(value)
    except (ValueError, TypeError, OverflowError, OSError):
        return None
    if with_timezone:
        return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
    return timestamp.replace(tzinfo=None)


def _coerce_date(value: Any) -> date | None:
    try:
        return date.fromisoformat(value)
    except (ValueError, TypeError):
        return None


_JOB_COLUMNS = "job_id STRING, job_name STRING, attempt INT, created_at TIMESTAMP, batch_id STRING"
_PAYLOAD_COLUMNS = "payload STRING, payload_raw BINARY"
_VIEW_COLUMNS = {
    "jobs": "queue_name STRING, entry_id STRING, enqueued_at TIMESTAMP, "
    f"{_JOB_COLUMNS}, {_PAYLOAD_COLUMNS}",
    "dlq": f"queue_name STRING, entry_id STRING, dead_at TIMESTAMP, {_JOB_COLUMNS}, reason STRING, "
    f"detail STRING, error STRING, attempts INT, source_id STRING, {_PAYLOAD_COLUMNS}",
    "delayed": f"queue_name STRING, run_at TIMESTAMP, {_JOB_COLUMNS}, {_PAYLOAD_COLUMNS}",
    "events": "queue_name STRING, entry_id STRING, emitted_at TIMESTAMP, event STRING, "
    "job_id STRING, job_name STRING, attempt INT, duration_us BIGINT, backoff_ms BIGINT, "
    "delay_ms BIGINT, reason STRING, batch_id STRING",
    "results": f"queue_name STRING, job_id STRING, batch_id STRING, {_PAYLOAD_COLUMNS}",
}
PAYLOAD_STRUCT = "data"

Row = tuple[Any, ...]
# The columns, the bytes of the payload if it is readable, and the bytes for `payload_raw`.
ParsedRow = tuple[Row, bytes | None, bytes | None]


def view_columns(options: ReadOptions) -> str:
    """Return the columns of a view as DDL; payloadSchema adds `data`, the payload as a struct."""
    columns = _VIEW_COLUMNS[options.view]
    if options.payload_schema:
        columns += f", {PAYLOAD_STRUCT} STRUCT<{options.payload_schema}>"
    return columns


def validate_read_schema(options: ReadOptions, schema: StructType) -> StructType:
    """Return the schema if it has exactly the columns of the view.

    :raises InvalidArgument: if it does not.
    """
    expected = [column.split()[0] for column in _VIEW_COLUMNS[options.view].split(", ")]
    if options.payload_schema:
        expected.append(PAYLOAD_STRUCT)
    if schema.names != expected:
        raise InvalidArgument(
            f"the schema has the columns {', '.join(schema.names)}, but those of the view "
            f"{options.view} are {', '.join(expected)}; remove .schema() and use payloadSchema"
        )
    return schema


class RecordBatchBuilder:
    """Builder of record batches of a view from raw replies."""

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
        """Return one row per reply."""
        rows = []
        for raw in replies:
            row, body, payload_raw = self._parse_row(raw)
            if self._has_payload:
                value, text = _decode_payload(body)
                row += (text, payload_raw)
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
        enqueued_at = _to_micros(StreamId.parse(entry.id).ms)
        if isinstance(entry, InvalidEntry):
            return (entry.id, enqueued_at, *_job_values(None, entry.job_name)), None, entry.raw
        return (entry.id, enqueued_at, *_job_values(entry.job)), entry.job.body, entry.job.body

    def _parse_dead_letter(self, raw: Any) -> ParsedRow:
        dead_letter = dead_letters.parse_dead_letter(raw)
        row = (
            dead_letter.id,
            _to_micros(dead_letters.dead_lettered_at_ms(dead_letter)),
            *_job_values(dead_letter.job, dead_letter.job_name),
            dead_letter.reason,
            dead_letter.detail,
            dead_letter.error,
            dead_letter.attempts,
            dead_letter.source_id,
        )
        body = dead_letter.job.body if dead_letter.job else None
        return row, body, dead_letter.raw if body is None else body

    def _parse_delayed(self, raw: Any) -> ParsedRow:
        member, due_ms = raw
        try:
            job = decode_delayed_member(member)
        except DecodeError:
            return (_to_micros(due_ms), *_job_values(None)), None, member
        return (_to_micros(due_ms), *_job_values(job)), job.body, job.body

    def _parse_event(self, raw: Any) -> ParsedRow:
        event = as_event(raw)
        row = (
            event.entry_id,
            _to_micros(event.ts_ms),
            event.name,
            event.job_id or None,
            event.job_name or None,
            event.attempt,
            event.duration_us,
            event.backoff_ms,
            event.delay_ms,
            event.reason,
            _batch_id(event.job_id),
        )
        return row, None, None

    def _parse_result(self, raw: Any) -> ParsedRow:
        job_id, body = raw
        return (job_id, _batch_id(job_id)), body, body


def _to_micros(timestamp_ms: int) -> int:
    return timestamp_ms * 1000


def _batch_id(job_id: str) -> str | None:
    position = parse_batch_job_id(job_id)
    return position.batch_id if position else None


def _job_values(job: Job | None, job_name: str = "") -> Row:
    if job is None:
        return (None, job_name or None, None, None, None)
    attempt = job.attempt + 1  # as in events: the first attempt is 1
    return (job.id, job.name or None, attempt, _to_micros(job.created_at_ms), _batch_id(job.id))


def _decode_payload(body: bytes | None) -> tuple[Any, str | None]:
    """Return the payload and its JSON text, or None for both if it is unreadable."""
    if body is None:
        return None, None
    try:
        value = Job("", body, 0).payload
    except ChasquiError:
        return None, None
    try:
        return value, json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        return value, json.dumps(to_jsonable(value), ensure_ascii=False)
