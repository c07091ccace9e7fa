"""Encoding of Arrow columns as MessagePack, for Spark writes and for the tables of `sources`.

The encoder works on whole columns, without a Python loop over rows, and produces the same bytes as
msgpack. A value is a header and a body, so a column is a few Arrow arrays joined element by
element. The body of a list is a slice of the joined bytes of its items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_chasqui.core.errors import InvalidArgument

# The encoded bytes of a larger record batch might not fit into one Arrow array.
_MAX_SLICE_BYTES = 32 * 1024 * 1024
_HEADER_TABLE_SIZE = 65536
_NIL = pa.scalar(b"\xc0", pa.binary())
_EMPTY = pa.scalar(b"", pa.binary())


def split_batch(batch: Any) -> Iterator[Any]:
    """Yield a record batch in slices whose encoded bytes fit into one Arrow array.

    :param batch: the record batch. Nothing is yielded if it has no rows.
    """
    if batch.num_rows > 1 and batch.nbytes > _MAX_SLICE_BYTES:
        half = batch.num_rows // 2
        yield from split_batch(batch.slice(0, half))
        yield from split_batch(batch.slice(half))
    elif batch.num_rows:
        yield batch


def concat_elements(*parts: Any) -> Any:
    """Return binary arrays and scalars joined element by element."""
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _EMPTY)


def binary_scalar(value: bytes) -> Any:
    """Return an Arrow binary scalar."""
    return pa.scalar(value, pa.binary())


def binary_array(values: Any, lengths: Any) -> Any:
    """Return a binary array of consecutive elements with these lengths."""
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
    return _header_16_32(size, code16, code32)


def _array_header(size: int) -> bytes:
    return bytes((0x90 | size,)) if size < 16 else _header_16_32(size, 0xDC, 0xDD)


def map_header(size: int) -> bytes:
    """Return the MessagePack header of a map with this number of entries."""
    return bytes((0x80 | size,)) if size < 16 else _header_16_32(size, 0xDE, 0xDF)


def _header_16_32(size: int, code16: int, code32: int) -> bytes:
    if size < 65536:
        return bytes((code16,)) + size.to_bytes(2, "big")
    return bytes((code32,)) + size.to_bytes(4, "big")


@cache
def _header_table(make_header: Callable[[int], bytes]) -> Any:
    return pa.array([make_header(size) for size in range(_HEADER_TABLE_SIZE)], pa.binary())


def _headers(make_header: Callable[[int], bytes], sizes: Any) -> Any:
    """Return the header of each size; sizes below 65536 come from a table."""
    if len(sizes) and pc.max(sizes).as_py() >= _HEADER_TABLE_SIZE:
        return pa.array([make_header(size) for size in sizes.to_pylist()], pa.binary())
    return _header_table(make_header).take(sizes)


def str_headers(sizes: Any) -> Any:
    """Return the MessagePack headers of texts with these sizes in bytes."""
    return _headers(_str_header, sizes)


def bin_headers(sizes: Any) -> Any:
    """Return the MessagePack headers of binaries with these sizes."""
    return _headers(_bin_header, sizes)


class MessagePackEncoder:
    """Encoder of Arrow columns as MessagePack.

    :param timestamps: `iso` for ISO 8601 text, or `ms` for milliseconds since the epoch.
    :param decimals: `string` or `float`.
    """

    def __init__(self, timestamps: str = "iso", decimals: str = "string"):
        self._timestamps = timestamps
        self._decimals = decimals

    def encode_rows(self, names: list[str], columns: list[Any]) -> Any:
        """Return one map per row, with one key per column."""
        pieces: list[Any] = [binary_scalar(map_header(len(names)))]
        for name, column in zip(names, columns, strict=True):
            raw = name.encode()
            pieces += [binary_scalar(_str_header(len(raw)) + raw), self.encode_column(column)]
        return concat_elements(*pieces) if columns else pieces[0]

    def encode_column(self, column: Any) -> Any:
        """Return one value per row; null becomes nil.

        :raises InvalidArgument: if the type of the column is not supported.
        """
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if pa.types.is_null(column.type):
            return pa.repeat(_NIL, len(column))
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
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
        if types.is_string(kind) or types.is_large_string(kind) or kind == "string_view":
            return _encode_strings(column)
        if (
            types.is_binary(kind)
            or types.is_large_binary(kind)
            or types.is_fixed_size_binary(kind)
            or kind == "binary_view"
        ):
            raw = pc.fill_null(column.cast(pa.binary()), b"")
            return concat_elements(bin_headers(pc.binary_length(raw)), raw)
        if types.is_decimal(kind):
            return self._encode_decimals(column)
        if types.is_timestamp(kind):
            return self._encode_timestamps(column)
        if types.is_date(kind):
            return _encode_strings(column.cast(pa.string()))
        if types.is_time(kind):
            in_microseconds = column.cast(pa.time64("us"), safe=kind.bit_width == 32)
            return _encode_strings(in_microseconds.cast(pa.string()))
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
            f"a payload column cannot have the type {kind}; cast it to a string or a number"
        )

    def _encode_decimals(self, column: Any) -> Any:
        if self._decimals == "float":
            return _encode_floats(column.cast(pa.float64()))
        return _encode_strings(column.cast(pa.string()))

    def _encode_timestamps(self, column: Any) -> Any:
        # Cast to UTC without a time zone, because formatting a zone needs a time zone database.
        zoned = column.type.tz is not None
        # Nanoseconds are cut off, as `convert_value` does.
        plain = column.cast(pa.timestamp("us"), safe=column.type.unit != "ns")
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
    """Return each list as its header and the consecutive bytes of its items."""
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
    """Return each integer in its shortest MessagePack form."""
    is_unsigned = pa.types.is_uint64(column.type)
    signed = column.cast(pa.int64(), safe=not is_unsigned)
    values = pc.fill_null(signed, 0).to_numpy(zero_copy_only=False)
    # Negative integers have other limits than positive ones, but the same five widths. An unsigned
    # integer above the signed ones looks negative here, and has the largest width.
    magnitude = np.where(values < 0, -(values + 1), values)
    negative = np.zeros(len(values), bool) if is_unsigned else values < 0
    if is_unsigned:
        magnitude[values < 0] = np.iinfo(np.int64).max
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
