"""Arrow columns as MessagePack, a column at a time: the bytes that msgpack would write row by row.

Nothing here loops over rows in Python. A value is a header and a body, so a column is a few Arrow
arrays that are joined element by element; a list is a slice of the joined bytes of its items.

Rows as jobs, ready for the socket: a row becomes one RESP argument, or three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_chasqui.core.codec import MAX_JOB_NAME_BYTES, encode_envelope
from airflow_provider_chasqui.core.errors import InvalidArgument, PayloadTooLarge
from airflow_provider_chasqui.core.keys import BATCH_PREFIX
from airflow_provider_chasqui.core.resp import EncodedArgs
from airflow_provider_chasqui.spark.options import WriteOptions

_HEADER_TABLE_SIZE = 65536
_NIL = pa.scalar(b"\xc0", pa.binary())
_EMPTY = pa.scalar(b"", pa.binary())


def concat_elements(*parts: Any) -> Any:
    """Return binary pieces, arrays and scalars, joined element by element."""
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _EMPTY)


def binary_scalar(value: bytes) -> Any:
    return pa.scalar(value, pa.binary())


def binary_array(values: Any, lengths: Any) -> Any:
    """Return the binary array whose elements of these lengths stand one after another."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    )


def fixed_width(matrix: Any) -> Any:
    """Return the rows of a byte matrix as a binary array."""
    rows, width = matrix.shape
    return binary_array(np.ascontiguousarray(matrix), np.full(rows, width, np.int32))


def _str_header(size: int) -> bytes:
    if size < 32:
        return bytes((0xA0 | size,))
    return _header_8_16_32(size, 0xD9, 0xDA, 0xDB)


def _bin_header(size: int) -> bytes:
    return _header_8_16_32(size, 0xC4, 0xC5, 0xC6)


def _header_8_16_32(size: int, code8: int, code16: int, code32: int) -> bytes:
    if size < 256:
        return bytes((code8, size))
    return (
        bytes((code16,)) + size.to_bytes(2, "big")
        if size < 65536
        else bytes((code32,)) + size.to_bytes(4, "big")
    )


def _array_header(size: int) -> bytes:
    return bytes((0x90 | size,)) if size < 16 else _header_16_32(size, 0xDC, 0xDD)


def map_header(size: int) -> bytes:
    return bytes((0x80 | size,)) if size < 16 else _header_16_32(size, 0xDE, 0xDF)


def _header_16_32(size: int, code16: int, code32: int) -> bytes:
    if size < 65536:
        return bytes((code16,)) + size.to_bytes(2, "big")
    return bytes((code32,)) + size.to_bytes(4, "big")


@cache
def _header_table(make_header: Callable[[int], bytes]) -> Any:
    return pa.array([make_header(size) for size in range(_HEADER_TABLE_SIZE)], pa.binary())


def _headers(make_header: Callable[[int], bytes], sizes: Any) -> Any:
    """Return the header of each size. The common ones come out of a table."""
    if len(sizes) and pc.max(sizes).as_py() >= _HEADER_TABLE_SIZE:
        return pa.array([make_header(size) for size in sizes.to_pylist()], pa.binary())
    return _header_table(make_header).take(sizes)


def str_headers(sizes: Any) -> Any:
    return _headers(_str_header, sizes)


def bin_headers(sizes: Any) -> Any:
    return _headers(_bin_header, sizes)


class MessagePackEncoder:
    """Writes columns as MessagePack. Timestamps and decimals have two forms to choose from."""

    def __init__(self, timestamps: str = "iso", decimals: str = "string"):
        self._timestamps = timestamps
        self._decimals = decimals

    def encode_rows(self, names: list[str], columns: list[Any]) -> Any:
        """Return one map a row, a key for each column."""
        pieces: list[Any] = [binary_scalar(map_header(len(names)))]
        for name, column in zip(names, columns, strict=True):
            raw = name.encode()
            pieces += [binary_scalar(_str_header(len(raw)) + raw), self.encode_column(column)]
        return concat_elements(*pieces) if columns else pieces[0]

    def encode_column(self, column: Any) -> Any:
        """Return one value a row; a null is nil."""
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if pa.types.is_null(column.type):
            return pa.repeat(_NIL, len(column))
        encoded = self._encode_values(column)
        return pc.if_else(column.is_valid(), encoded, _NIL) if column.null_count else encoded

    def _encode_values(self, column: Any) -> Any:
        kind, types = column.type, pa.types
        if types.is_boolean(kind):
            return pc.if_else(
                pc.fill_null(column, False), binary_scalar(b"\xc3"), binary_scalar(b"\xc2")
            )
        if types.is_integer(kind):
            return encode_integers(column)
        if types.is_floating(kind):
            return _encode_floats(column)
        if types.is_string(kind) or types.is_large_string(kind):
            return _encode_strings(column)
        if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
            raw = pc.fill_null(column.cast(pa.binary()), b"")
            return concat_elements(bin_headers(pc.binary_length(raw)), raw)
        if types.is_decimal(kind):
            return self._encode_decimals(column)
        if types.is_timestamp(kind):
            return self._encode_timestamps(column)
        if types.is_date(kind):
            return _encode_strings(column.cast(pa.string()))
        if types.is_struct(kind):
            fields = [kind.field(i).name for i in range(kind.num_fields)]
            filled = self.encode_rows(fields, column.flatten())
            return pa.repeat(filled, len(column)) if isinstance(filled, pa.Scalar) else filled
        if types.is_map(kind):
            return self._encode_maps(column)
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            return _list_bytes(
                _array_header, self.encode_column(column.flatten()), _list_lengths(column)
            )
        raise InvalidArgument(
            f"a column of type {kind} cannot be a payload: cast it to a string or number"
        )

    def _encode_decimals(self, column: Any) -> Any:
        if self._decimals == "float":
            return _encode_floats(column.cast(pa.float64()))
        return _encode_strings(column.cast(pa.string()))

    def _encode_timestamps(self, column: Any) -> Any:
        # Without its zone a timestamp is in UTC, and needs no zone database to be written.
        zoned = column.type.tz is not None
        plain = column.cast(pa.timestamp("us"))
        if self._timestamps == "ms":
            return encode_integers(pc.divide(plain.cast(pa.int64()), 1000))
        text = pc.replace_substring(plain.cast(pa.string()), " ", "T", max_replacements=1)
        return _encode_strings(pc.binary_join_element_wise(text, "Z", "") if zoned else text)

    def _encode_maps(self, column: Any) -> Any:
        entries = column.cast(pa.list_(pa.struct([column.type.key_field, column.type.item_field])))
        pairs = entries.flatten()
        body = (
            concat_elements(*(self.encode_column(half) for half in pairs.flatten()))
            if len(pairs)
            else None
        )
        return _list_bytes(map_header, body, _list_lengths(entries))


def _list_lengths(column: Any) -> Any:
    return pc.fill_null(pc.list_value_length(column), 0).cast(pa.int32())


def _list_bytes(make_header: Callable[[int], bytes], items: Any, sizes: Any) -> Any:
    """Return each list as its header and the bytes of its items, which stand side by side."""
    if items is None or not len(items):
        return _headers(make_header, sizes)
    if items.offset:
        items = pa.concat_arrays([items])
    _, offsets, values = items.buffers()
    starts = np.frombuffer(offsets, np.int32, len(items) + 1)
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes.to_numpy(zero_copy_only=False), out=ends[1:])
    edges = pa.py_buffer(np.ascontiguousarray(starts[ends]))
    body = pa.BinaryArray.from_buffers(pa.binary(), len(sizes), [None, edges, values])
    return concat_elements(_headers(make_header, sizes), body)


def _encode_strings(column: Any) -> Any:
    raw = pc.fill_null(column.cast(pa.binary()), b"")
    return concat_elements(str_headers(pc.binary_length(raw)), raw)


def _encode_floats(column: Any) -> Any:
    values = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
    matrix = np.empty((len(values), 9), np.uint8)
    matrix[:, 0] = 0xCB
    matrix[:, 1:] = values.astype(">f8").view(np.uint8).reshape(-1, 8)
    return fixed_width(matrix)


def encode_integers(column: Any) -> Any:
    """Return each whole number in its shortest form."""
    values = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    # Negative numbers have shorter ranges by half, but the same five widths.
    magnitude = np.where(values < 0, -(values + 1), values)
    negative = values < 0
    edges = np.array([2**7, 2**8, 2**16, 2**32], np.int64)
    below = np.array([2**5, 2**7, 2**15, 2**31], np.int64)
    step = np.where(
        negative,
        np.searchsorted(below, magnitude, "right"),
        np.searchsorted(edges, magnitude, "right"),
    )
    widths = np.array([1, 2, 3, 5, 9], np.int32)[step]
    matrix = np.empty((len(values), 9), np.uint8)
    matrix[:, 1:] = values.astype(">i8").view(np.uint8).reshape(-1, 8)
    marks = np.where(negative, 0xCF, 0xCB) + step
    long = np.flatnonzero(step)
    matrix[long, 9 - widths[long]] = marks[long].astype(np.uint8)
    if len(widths) and (widths == widths[0]).all():
        return fixed_width(matrix[:, 9 - widths[0] :])
    return binary_array(matrix[np.arange(9) >= (9 - widths)[:, None]], widths)


_MAX_SLICE_BYTES = 32 * 1024 * 1024
_CRLF = binary_scalar(b"\r\n")


class RowEncoder:
    """Turns record batches into packed arguments, by the options of a write."""

    def __init__(self, options: WriteOptions, column_names: list[str]):
        self._options = options
        self._encoder = MessagePackEncoder(options.timestamp_format, options.decimal_format)
        self._payload_names = _payload_columns(options, column_names)
        empty = encode_envelope("", b"", 0, 0, options.retry)
        # The envelope is head, id, body, created, attempt and retry; all but two are the same.
        self._envelope_prefix, self._encoded_retry = empty[:1], empty[6:]

    def check_types(self, schema: Any) -> None:
        """Raise if a payload column has a type that cannot be written."""
        for name in (
            [self._options.value_column] if self._options.value_column else self._payload_names
        ):
            self._encoder.encode_column(pa.array([], schema.field(name).type))

    def split_batch(self, batch: Any) -> Iterator[Any]:
        """Yield the batch in slices whose bytes fit into one Arrow array, whatever their size."""
        if batch.num_rows > 1 and batch.nbytes > _MAX_SLICE_BYTES:
            half = batch.num_rows // 2
            yield from self.split_batch(batch.slice(0, half))
            yield from self.split_batch(batch.slice(half))
        elif batch.num_rows:
            yield batch

    def encode_jobs(self, batch: Any, id_prefix: str, first_index: int, now_ms: int) -> EncodedRows:
        """Return one argument a row: a job as it is staged; `prefix` and a number are its id."""
        ids = self._job_ids(batch, id_prefix, first_index)
        before, behind = self._before_and_after_id(batch, now_ms)
        return EncodedRows(
            1, _resp_argument([*before, str_headers(pc.binary_length(ids)), ids, *behind])
        )

    def encode_dedup_rows(self, batch: Any, now_ms: int) -> EncodedRows:
        """Return three arguments a row: what tells it apart, the job before and behind its id."""
        key = _required_text(batch, self._options.dedup_key_column or "", "dedupKey")
        before, behind = self._before_and_after_id(batch, now_ms)
        if self._options.job_id_column:
            ids = self._job_ids(batch, "", 0)
            before = [*before, str_headers(pc.binary_length(ids)), ids]
        elif all(isinstance(piece, pa.Scalar) for piece in before):
            same = binary_scalar(b"".join(piece.as_py() for piece in before))
            before = [pa.repeat(same, batch.num_rows)]
        return EncodedRows(
            3, concat_elements(*(_resp_argument(part) for part in ([key], before, behind)))
        )

    def _job_ids(self, batch: Any, id_prefix: str, first_index: int) -> Any:
        if not self._options.job_id_column:
            numbers = pa.array(np.arange(first_index, first_index + batch.num_rows)).cast(
                pa.string()
            )
            return concat_elements(binary_scalar(id_prefix.encode()), numbers.cast(pa.binary()))
        ids = _required_text(batch, self._options.job_id_column, "jobId")
        if pc.any(pc.starts_with(ids.cast(pa.string()), BATCH_PREFIX)).as_py():
            raise InvalidArgument(f"ids that begin with {BATCH_PREFIX!r} are for batches")
        return ids

    def _before_and_after_id(self, batch: Any, now_ms: int) -> tuple[list[Any], list[Any]]:
        body = self._payloads(batch)
        sizes = pc.binary_length(body)
        largest = pc.max(sizes).as_py()
        if largest > self._options.max_payload_bytes:
            raise PayloadTooLarge(
                f"a row has {largest} bytes, the limit is {self._options.max_payload_bytes}; send "
                "a reference to the data instead, or raise maxPayloadBytes here and on the workers"
            )
        before = [
            *self._run_at(batch, now_ms),
            *self._job_names(batch),
            binary_scalar(self._envelope_prefix),
        ]
        created = encode_envelope("", b"", now_ms)[4:-1]
        behind = [bin_headers(sizes), body, binary_scalar(created + b"\x00" + self._encoded_retry)]
        return before, behind

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
                f"a job name has at most {MAX_JOB_NAME_BYTES} bytes; one has {sizes.max()}"
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
                "a row is due later than maxDelay allows; raise maxDelay if that is wanted"
            )
        digits = due[:, None] // 10 ** np.arange(13, -1, -1) % 10 + ord("0")
        return [fixed_width(digits.astype(np.uint8))]


class EncodedRows:
    """Packed arguments of consecutive rows, cut into calls without copying."""

    def __init__(self, arguments_per_row: int, array: Any):
        _, offsets, values = array.buffers()
        self._offsets = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)
        self._values = memoryview(values) if values is not None else memoryview(b"")
        self._arguments_per_row = arguments_per_row

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def size_bytes(self) -> int:
        return int(self._offsets[-1] - self._offsets[0])

    def split_calls(self, max_rows: int, max_bytes: int) -> Iterator[tuple[int, EncodedArgs]]:
        """Yield (rows, arguments) of at most `rows` rows and about `size` bytes a call."""
        start = 0
        while start < len(self):
            end = int(np.searchsorted(self._offsets, self._offsets[start] + max_bytes, "right")) - 1
            end = max(start + 1, min(end, start + max_rows, len(self)))
            data = self._values[int(self._offsets[start]) : int(self._offsets[end])]
            yield end - start, EncodedArgs((end - start) * self._arguments_per_row, data)
            start = end


def _resp_argument(parts: list[Any]) -> Any:
    """Return pieces that make one argument as that argument in RESP."""
    lengths = 0
    for piece in parts:
        scalar = isinstance(piece, pa.Scalar)
        lengths += len(piece.as_py()) if scalar else pc.binary_length(piece).to_numpy()
    digits = pa.array(np.asarray(lengths)).cast(pa.string()).cast(pa.binary())
    return concat_elements(binary_scalar(b"$"), digits, _CRLF, *parts, _CRLF)


def _required_text(batch: Any, column_name: str, option: str) -> Any:
    column = batch.column(column_name).cast(pa.string())
    if (
        column.null_count
        or pc.any(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(column)), 0)).as_py()
    ):
        raise InvalidArgument(f"the column {column_name!r} ({option}) is null or blank in some row")
    return column.cast(pa.binary())


def _payload_columns(options: WriteOptions, column_names: list[str]) -> list[str]:
    """Return the columns that make the payload, or raise naming the one that is not there."""
    apart = {
        "jobNameColumn": options.job_name_column, "jobId": options.job_id_column, "runAt": options.run_at_column,
        "value": options.value_column, "dedupKey": options.dedup_key_column,
    }  # fmt: skip
    for option, name in apart.items():
        if name and name not in column_names:
            raise InvalidArgument(
                f"{option} names the column {name!r}; there are {', '.join(column_names)}"
            )
    wanted = options.payload_columns
    if wanted is None:
        taken = {options.job_name_column, options.run_at_column}
        return [name for name in column_names if name not in taken]
    for name in wanted:
        if name not in column_names:
            raise InvalidArgument(
                f"payload names the column {name!r}; there are {', '.join(column_names)}"
            )
    return list(wanted)
