"""Encoding of Arrow record batches as the jobs of a Spark write: arguments of a RESP command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_chasqui.arrow_encoder import (
    MessagePackEncoder,
    bin_headers,
    binary_scalar,
    concat_elements,
    fixed_width,
    str_headers,
)
from airflow_provider_chasqui.core.codec import MAX_JOB_NAME_BYTES, encode_envelope
from airflow_provider_chasqui.core.errors import InvalidArgument, PayloadTooLarge
from airflow_provider_chasqui.core.keys import BATCH_PREFIX
from airflow_provider_chasqui.core.resp import EncodedArgs
from airflow_provider_chasqui.spark.options import WriteOptions

_CRLF = binary_scalar(b"\r\n")


class RowEncoder:
    """Encoder of record batches as RESP arguments."""

    def __init__(self, options: WriteOptions, column_names: list[str]):
        self._options = options
        self._encoder = MessagePackEncoder(options.timestamp_format, options.decimal_format)
        self._payload_names = _payload_columns(options, column_names)
        empty = encode_envelope("", b"", 0, 0, options.retry)
        # The envelope is array header, id, body, creation time, attempt and retry. Only the id and
        # the body differ between rows.
        self._envelope_prefix, self._encoded_retry = empty[:1], empty[6:]

    def check_types(self, schema: Any) -> None:
        """Raise `InvalidArgument` if a payload column has a type that cannot be written."""
        value_column = self._options.value_column
        for name in [value_column] if value_column else self._payload_names:
            self._encoder.encode_column(pa.array([], schema.field(name).type))

    def encode_jobs(self, batch: Any, id_prefix: str, first_index: int, now_ms: int) -> EncodedRows:
        """Return one argument per row, a job as it is staged.

        :param batch: the rows.
        :param id_prefix: the job id without the index, unless the option jobId is set.
        :param first_index: the index of the first row.
        :param now_ms: the creation time of the jobs.
        """
        ids = self._job_ids(batch, id_prefix, first_index)
        before, after = self._before_and_after_id(batch, now_ms)
        return EncodedRows(
            1, _resp_argument([*before, str_headers(pc.binary_length(ids)), ids, *after])
        )

    def encode_dedup_rows(self, batch: Any, now_ms: int) -> EncodedRows:
        """Return three arguments per row: its dedup key, and the job before and after the id."""
        key = _required_text(batch, self._options.dedup_key_column or "", "dedupKey")
        before, after = self._before_and_after_id(batch, now_ms)
        if self._options.job_id_column:
            ids = self._job_ids(batch, "", 0)
            before = [*before, str_headers(pc.binary_length(ids)), ids]
        elif all(isinstance(piece, pa.Scalar) for piece in before):
            same = binary_scalar(b"".join(piece.as_py() for piece in before))
            before = [pa.repeat(same, batch.num_rows)]
        return EncodedRows(
            3, concat_elements(*(_resp_argument(part) for part in ([key], before, after)))
        )

    def _job_ids(self, batch: Any, id_prefix: str, first_index: int) -> Any:
        if not self._options.job_id_column:
            numbers = pa.array(np.arange(first_index, first_index + batch.num_rows)).cast(
                pa.string()
            )
            return concat_elements(binary_scalar(id_prefix.encode()), numbers.cast(pa.binary()))
        ids = _required_text(batch, self._options.job_id_column, "jobId")
        if pc.any(pc.starts_with(ids.cast(pa.string()), BATCH_PREFIX)).as_py():
            raise InvalidArgument(
                f"a value of the column {self._options.job_id_column!r} (jobId) begins with "
                f"{BATCH_PREFIX!r}, which is reserved for batches"
            )
        return ids

    def _before_and_after_id(self, batch: Any, now_ms: int) -> tuple[list[Any], list[Any]]:
        body = self._payloads(batch)
        sizes = pc.binary_length(body)
        largest = pc.max(sizes).as_py()
        if largest > self._options.max_payload_bytes:
            raise PayloadTooLarge(
                f"a payload has {largest} bytes, more than {self._options.max_payload_bytes}; send "
                "a reference to the data instead, or raise maxPayloadBytes here and on the workers"
            )
        before = [
            *self._run_at(batch, now_ms),
            *self._job_names(batch),
            binary_scalar(self._envelope_prefix),
        ]
        created = encode_envelope("", b"", now_ms)[4:-1]
        after = [bin_headers(sizes), body, binary_scalar(created + b"\x00" + self._encoded_retry)]
        return before, after

    def _payloads(self, batch: Any) -> Any:
        if self._options.value_column:
            return self._encoder.encode_column(batch.column(self._options.value_column))
        columns = [batch.column(name) for name in self._payload_names]
        body = self._encoder.encode_rows(self._payload_names, columns)
        return pa.repeat(body, batch.num_rows) if isinstance(body, pa.Scalar) else body

    def _job_names(self, batch: Any) -> list[Any]:
        name = self._options.job_name
        if not self._options.job_name_column:
            return [binary_scalar(len(name).to_bytes(4, "little") + name)]
        names = pc.fill_null(batch.column(self._options.job_name_column).cast(pa.string()), "")
        raw = names.cast(pa.binary())
        sizes = pc.binary_length(raw).to_numpy(zero_copy_only=False).astype("<u4")
        if sizes.max() > MAX_JOB_NAME_BYTES:
            raise InvalidArgument(
                f"a job name has {sizes.max()} bytes, more than {MAX_JOB_NAME_BYTES}"
            )
        return [fixed_width(sizes.view(np.uint8).reshape(-1, 4)), raw]

    def _run_at(self, batch: Any, now_ms: int) -> list[Any]:
        if not self._options.run_at_column:
            return []
        column = batch.column(self._options.run_at_column)
        if pa.types.is_timestamp(column.type):
            column = pc.divide(column.cast(pa.timestamp("us")).cast(pa.int64()), 1000)
        due = np.maximum(pc.fill_null(column.cast(pa.int64()), 0).to_numpy(), 0)
        if due.max() - now_ms > self._options.max_delay_ms:
            raise InvalidArgument(
                f"a row is due more than maxDelay ({self._options.max_delay_ms} ms) from now; "
                "raise maxDelay if this is intended"
            )
        digits = due[:, None] // 10 ** np.arange(13, -1, -1) % 10 + ord("0")
        return [fixed_width(digits.astype(np.uint8))]


class EncodedRows:
    """RESP arguments of consecutive rows, which can be split into calls without copying."""

    def __init__(self, arguments_per_row: int, array: Any):
        _, offsets, values = array.buffers()
        self._offsets = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)
        self._values = memoryview(values) if values is not None else memoryview(b"")
        self._arguments_per_row = arguments_per_row

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def size_bytes(self) -> int:
        """The size of all arguments."""
        return int(self._offsets[-1] - self._offsets[0])

    def split_calls(self, max_rows: int, max_bytes: int) -> Iterator[tuple[int, EncodedArgs]]:
        """Yield (number of rows, arguments) per call, at most `max_rows` and about `max_bytes`."""
        start = 0
        while start < len(self):
            end = int(np.searchsorted(self._offsets, self._offsets[start] + max_bytes, "right")) - 1
            end = max(start + 1, min(end, start + max_rows, len(self)))
            data = self._values[int(self._offsets[start]) : int(self._offsets[end])]
            yield end - start, EncodedArgs((end - start) * self._arguments_per_row, data)
            start = end


def _resp_argument(parts: list[Any]) -> Any:
    """Return one RESP argument per row, made of the joined parts."""
    lengths = 0
    for part in parts:
        is_scalar = isinstance(part, pa.Scalar)
        lengths += len(part.as_py()) if is_scalar else pc.binary_length(part).to_numpy()
    digits = pa.array(np.asarray(lengths)).cast(pa.string()).cast(pa.binary())
    return concat_elements(binary_scalar(b"$"), digits, _CRLF, *parts, _CRLF)


def _required_text(batch: Any, column_name: str, option: str) -> Any:
    column = batch.column(column_name).cast(pa.string())
    if (
        column.null_count
        or pc.any(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(column)), 0)).as_py()
    ):
        raise InvalidArgument(
            f"the column {column_name!r} ({option}) is null or blank in at least one row"
        )
    return column.cast(pa.binary())


def _payload_columns(options: WriteOptions, column_names: list[str]) -> list[str]:
    """Return the columns of the payload; raise if an option names a column that does not exist."""
    named = [
        ("jobNameColumn", options.job_name_column),
        ("jobId", options.job_id_column),
        ("runAt", options.run_at_column),
        ("value", options.value_column),
        ("dedupKey", options.dedup_key_column),
        *(("payload", name) for name in options.payload_columns or ()),
    ]
    for option, name in named:
        if name and name not in column_names:
            raise InvalidArgument(
                f"{option} names the column {name!r}, which does not exist; the columns are "
                f"{', '.join(column_names)}"
            )
    if options.payload_columns is not None:
        return list(options.payload_columns)
    excluded = {options.job_name_column, options.run_at_column}
    return [name for name in column_names if name not in excluded]
