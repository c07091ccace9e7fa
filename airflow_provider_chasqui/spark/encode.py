"""Arrow columns as MessagePack, a column at a time: the bytes that msgpack would write row by row.

Nothing here loops over rows in Python. A value is a header and a body, so a column is a few Arrow
arrays that are joined element by element; a list is a slice of the joined bytes of its items.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_chasqui.core.errors import BadInput

_TABLE = 65536
_NIL = pa.scalar(b"\xc0", pa.binary())
_EMPTY = pa.scalar(b"", pa.binary())


def joined(*pieces: Any) -> Any:
    """Return binary pieces, arrays and scalars, joined element by element."""
    return pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, _EMPTY)


def constant(raw: bytes) -> Any:
    return pa.scalar(raw, pa.binary())


def from_parts(values: Any, lengths: Any) -> Any:
    """Return the binary array whose elements of these lengths stand one after another."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    )


def fixed(matrix: Any) -> Any:
    """Return the rows of a byte matrix as a binary array."""
    rows, width = matrix.shape
    return from_parts(np.ascontiguousarray(matrix), np.full(rows, width, np.int32))


def _text_header(size: int) -> bytes:
    if size < 32:
        return bytes((0xA0 | size,))
    return _sized(size, 0xD9, 0xDA, 0xDB)


def _binary_header(size: int) -> bytes:
    return _sized(size, 0xC4, 0xC5, 0xC6)


def _sized(size: int, one: int, two: int, four: int) -> bytes:
    if size < 256:
        return bytes((one, size))
    return (
        bytes((two,)) + size.to_bytes(2, "big")
        if size < 65536
        else bytes((four,)) + size.to_bytes(4, "big")
    )


def _array_header(size: int) -> bytes:
    return bytes((0x90 | size,)) if size < 16 else _long(size, 0xDC, 0xDD)


def map_header(size: int) -> bytes:
    return bytes((0x80 | size,)) if size < 16 else _long(size, 0xDE, 0xDF)


def _long(size: int, two: int, four: int) -> bytes:
    if size < 65536:
        return bytes((two,)) + size.to_bytes(2, "big")
    return bytes((four,)) + size.to_bytes(4, "big")


@cache
def _table(header: Callable[[int], bytes]) -> Any:
    return pa.array([header(size) for size in range(_TABLE)], pa.binary())


def _headers(header: Callable[[int], bytes], sizes: Any) -> Any:
    """Return the header of each size. The common ones come out of a table."""
    if len(sizes) and pc.max(sizes).as_py() >= _TABLE:
        return pa.array([header(size) for size in sizes.to_pylist()], pa.binary())
    return _table(header).take(sizes)


def text_headers(sizes: Any) -> Any:
    return _headers(_text_header, sizes)


def binary_headers(sizes: Any) -> Any:
    return _headers(_binary_header, sizes)


class Encoder:
    """Writes columns as MessagePack. Timestamps and decimals have two forms to choose from."""

    def __init__(self, timestamps: str = "iso", decimals: str = "string"):
        self._timestamps = timestamps
        self._decimals = decimals

    def map_of(self, names: list[str], columns: list[Any]) -> Any:
        """Return one map a row, a key for each column."""
        pieces: list[Any] = [constant(map_header(len(names)))]
        for name, column in zip(names, columns, strict=True):
            raw = name.encode()
            pieces += [constant(_text_header(len(raw)) + raw), self.values(column)]
        return joined(*pieces) if columns else pieces[0]

    def values(self, column: Any) -> Any:
        """Return one value a row; a null is nil."""
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if pa.types.is_null(column.type):
            return pa.repeat(_NIL, len(column))
        encoded = self._encode(column)
        return pc.if_else(column.is_valid(), encoded, _NIL) if column.null_count else encoded

    def _encode(self, column: Any) -> Any:
        kind, types = column.type, pa.types
        if types.is_boolean(kind):
            return pc.if_else(pc.fill_null(column, False), constant(b"\xc3"), constant(b"\xc2"))
        if types.is_integer(kind):
            return integers(column)
        if types.is_floating(kind):
            return _floats(column)
        if types.is_string(kind) or types.is_large_string(kind):
            return _texts(column)
        if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
            raw = pc.fill_null(column.cast(pa.binary()), b"")
            return joined(binary_headers(pc.binary_length(raw)), raw)
        if types.is_decimal(kind):
            return self._decimal(column)
        if types.is_timestamp(kind):
            return self._timestamp(column)
        if types.is_date(kind):
            return _texts(column.cast(pa.string()))
        if types.is_struct(kind):
            fields = [kind.field(i).name for i in range(kind.num_fields)]
            filled = self.map_of(fields, column.flatten())
            return pa.repeat(filled, len(column)) if isinstance(filled, pa.Scalar) else filled
        if types.is_map(kind):
            return self._maps(column)
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            return _sliced(_array_header, self.values(column.flatten()), _sizes(column))
        raise BadInput(
            f"a column of type {kind} cannot be a payload: cast it to a string or number"
        )

    def _decimal(self, column: Any) -> Any:
        if self._decimals == "float":
            return _floats(column.cast(pa.float64()))
        return _texts(column.cast(pa.string()))

    def _timestamp(self, column: Any) -> Any:
        # Without its zone a timestamp is in UTC, and needs no zone database to be written.
        zoned = column.type.tz is not None
        plain = column.cast(pa.timestamp("us"))
        if self._timestamps == "ms":
            return integers(pc.divide(plain.cast(pa.int64()), 1000))
        text = pc.replace_substring(plain.cast(pa.string()), " ", "T", max_replacements=1)
        return _texts(pc.binary_join_element_wise(text, "Z", "") if zoned else text)

    def _maps(self, column: Any) -> Any:
        entries = column.cast(pa.list_(pa.struct([column.type.key_field, column.type.item_field])))
        pairs = entries.flatten()
        body = joined(*(self.values(half) for half in pairs.flatten())) if len(pairs) else None
        return _sliced(map_header, body, _sizes(entries))


def _sizes(column: Any) -> Any:
    return pc.fill_null(pc.list_value_length(column), 0).cast(pa.int32())


def _sliced(header: Callable[[int], bytes], items: Any, sizes: Any) -> Any:
    """Return each list as its header and the bytes of its items, which stand side by side."""
    if items is None or not len(items):
        return _headers(header, sizes)
    if items.offset:
        items = pa.concat_arrays([items])
    _, offsets, values = items.buffers()
    starts = np.frombuffer(offsets, np.int32, len(items) + 1)
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes.to_numpy(zero_copy_only=False), out=ends[1:])
    edges = pa.py_buffer(np.ascontiguousarray(starts[ends]))
    body = pa.BinaryArray.from_buffers(pa.binary(), len(sizes), [None, edges, values])
    return joined(_headers(header, sizes), body)


def _texts(column: Any) -> Any:
    raw = pc.fill_null(column.cast(pa.binary()), b"")
    return joined(text_headers(pc.binary_length(raw)), raw)


def _floats(column: Any) -> Any:
    values = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
    matrix = np.empty((len(values), 9), np.uint8)
    matrix[:, 0] = 0xCB
    matrix[:, 1:] = values.astype(">f8").view(np.uint8).reshape(-1, 8)
    return fixed(matrix)


def integers(column: Any) -> Any:
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
        return fixed(matrix[:, 9 - widths[0] :])
    return from_parts(matrix[np.arange(9) >= (9 - widths)[:, None]], widths)
