"""Rows as jobs, ready for the socket: a row becomes one RESP argument, or three."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_chasqui.core.codec import NAME_MAX_BYTES, encode_envelope
from airflow_provider_chasqui.core.errors import BadInput, PayloadTooLarge
from airflow_provider_chasqui.core.keys import BATCH_PREFIX
from airflow_provider_chasqui.core.op import Packed
from airflow_provider_chasqui.spark.encode import (
    Encoder,
    binary_headers,
    constant,
    fixed,
    joined,
    text_headers,
)
from airflow_provider_chasqui.spark.options import WriteOptions

_SLICE_BYTES = 32 * 1024 * 1024
_CRLF = constant(b"\r\n")


class Framer:
    """Turns record batches into packed arguments, by the options of a write."""

    def __init__(self, options: WriteOptions, names: list[str]):
        self._options = options
        self._encoder = Encoder(options.timestamps, options.decimals)
        self._body = _payload_columns(options, names)
        empty = encode_envelope("", b"", 0, 0, options.retry)
        # The envelope is head, id, body, created, attempt and retry; all but two are the same.
        self._head, self._retry = empty[:1], empty[6:]

    def check(self, schema: Any) -> None:
        """Raise if a payload column has a type that cannot be written."""
        for name in [self._options.value] if self._options.value else self._body:
            self._encoder.values(pa.array([], schema.field(name).type))

    def slices(self, batch: Any) -> Iterator[Any]:
        """Yield the batch in slices whose bytes fit into one Arrow array, whatever their size."""
        if batch.num_rows > 1 and batch.nbytes > _SLICE_BYTES:
            half = batch.num_rows // 2
            yield from self.slices(batch.slice(0, half))
            yield from self.slices(batch.slice(half))
        elif batch.num_rows:
            yield batch

    def items(self, batch: Any, prefix: str, first: int, now_ms: int) -> Frames:
        """Return one argument a row: a job as it is staged; `prefix` and a number are its id."""
        ids = self._ids(batch, prefix, first)
        before, behind = self._halves(batch, now_ms)
        return Frames(1, _framed([*before, text_headers(pc.binary_length(ids)), ids, *behind]))

    def rows(self, batch: Any, now_ms: int) -> Frames:
        """Return three arguments a row: what tells it apart, the job before and behind its id."""
        key = _text(batch, self._options.dedup_key or "", "dedupKey")
        before, behind = self._halves(batch, now_ms)
        if self._options.job_id:
            ids = self._ids(batch, "", 0)
            before = [*before, text_headers(pc.binary_length(ids)), ids]
        elif all(isinstance(piece, pa.Scalar) for piece in before):
            same = constant(b"".join(piece.as_py() for piece in before))
            before = [pa.repeat(same, batch.num_rows)]
        return Frames(3, joined(*(_framed(part) for part in ([key], before, behind))))

    def _ids(self, batch: Any, prefix: str, first: int) -> Any:
        if not self._options.job_id:
            numbers = pa.array(np.arange(first, first + batch.num_rows)).cast(pa.string())
            return joined(constant(prefix.encode()), numbers.cast(pa.binary()))
        ids = _text(batch, self._options.job_id, "jobId")
        if pc.any(pc.starts_with(ids.cast(pa.string()), BATCH_PREFIX)).as_py():
            raise BadInput(f"ids that begin with {BATCH_PREFIX!r} are for batches")
        return ids

    def _halves(self, batch: Any, now_ms: int) -> tuple[list[Any], list[Any]]:
        body = self._bodies(batch)
        sizes = pc.binary_length(body)
        largest = pc.max(sizes).as_py()
        if largest > self._options.max_payload_bytes:
            raise PayloadTooLarge(
                f"a row has {largest} bytes, the limit is {self._options.max_payload_bytes}; send "
                "a reference to the data instead, or raise maxPayloadBytes here and on the workers"
            )
        before = [*self._due(batch, now_ms), *self._names(batch), constant(self._head)]
        created = encode_envelope("", b"", now_ms)[4:-1]
        behind = [binary_headers(sizes), body, constant(created + b"\x00" + self._retry)]
        return before, behind

    def _bodies(self, batch: Any) -> Any:
        if self._options.value:
            return self._encoder.values(batch.column(self._options.value))
        columns = [batch.column(name) for name in self._body]
        body = self._encoder.map_of(self._body, columns)
        return pa.repeat(body, batch.num_rows) if isinstance(body, pa.Scalar) else body

    def _names(self, batch: Any) -> list[Any]:
        name = self._options.name
        if not self._options.name_column:
            return [constant(len(name).to_bytes(4, "little") + name)]
        names = pc.fill_null(batch.column(self._options.name_column).cast(pa.string()), "")
        raw = names.cast(pa.binary())
        sizes = pc.binary_length(raw).to_numpy(zero_copy_only=False).astype("<u4")
        if sizes.max() > NAME_MAX_BYTES:
            raise BadInput(f"a job name has at most {NAME_MAX_BYTES} bytes; one has {sizes.max()}")
        return [fixed(sizes.view(np.uint8).reshape(-1, 4)), raw]

    def _due(self, batch: Any, now_ms: int) -> list[Any]:
        if not self._options.run_at:
            return []
        column = batch.column(self._options.run_at)
        if pa.types.is_timestamp(column.type):
            column = pc.divide(column.cast(pa.timestamp("us")).cast(pa.int64()), 1000)
        due = np.maximum(pc.fill_null(column.cast(pa.int64()), 0).to_numpy(), 0)
        if due.max() - now_ms > self._options.max_delay_ms:
            raise BadInput(
                "a row is due later than maxDelay allows; raise maxDelay if that is wanted"
            )
        digits = due[:, None] // 10 ** np.arange(13, -1, -1) % 10 + ord("0")
        return [fixed(digits.astype(np.uint8))]


class Frames:
    """Packed arguments of consecutive rows, cut into calls without copying."""

    def __init__(self, width: int, array: Any):
        _, offsets, values = array.buffers()
        self._edges = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)
        self._values = memoryview(values) if values is not None else memoryview(b"")
        self._width = width

    def __len__(self) -> int:
        return len(self._edges) - 1

    @property
    def size(self) -> int:
        return int(self._edges[-1] - self._edges[0])

    def cut(self, rows: int, size: int) -> Iterator[tuple[int, Packed]]:
        """Yield (rows, arguments) of at most `rows` rows and about `size` bytes a call."""
        start = 0
        while start < len(self):
            end = int(np.searchsorted(self._edges, self._edges[start] + size, "right")) - 1
            end = max(start + 1, min(end, start + rows, len(self)))
            data = self._values[int(self._edges[start]) : int(self._edges[end])]
            yield end - start, Packed((end - start) * self._width, data)
            start = end


def _framed(pieces: list[Any]) -> Any:
    """Return pieces that make one argument as that argument in RESP."""
    lengths = 0
    for piece in pieces:
        scalar = isinstance(piece, pa.Scalar)
        lengths += len(piece.as_py()) if scalar else pc.binary_length(piece).to_numpy()
    digits = pa.array(np.asarray(lengths)).cast(pa.string()).cast(pa.binary())
    return joined(constant(b"$"), digits, _CRLF, *pieces, _CRLF)


def _text(batch: Any, name: str, option: str) -> Any:
    column = batch.column(name).cast(pa.string())
    if (
        column.null_count
        or pc.any(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(column)), 0)).as_py()
    ):
        raise BadInput(f"the column {name!r} ({option}) is null or blank in some row")
    return column.cast(pa.binary())


def _payload_columns(options: WriteOptions, names: list[str]) -> list[str]:
    """Return the columns that make the payload, or raise naming the one that is not there."""
    apart = {
        "nameColumn": options.name_column, "jobId": options.job_id, "runAt": options.run_at,
        "value": options.value, "dedupKey": options.dedup_key,
    }  # fmt: skip
    for option, name in apart.items():
        if name and name not in names:
            raise BadInput(f"{option} names the column {name!r}; there are {', '.join(names)}")
    wanted = options.payload
    if wanted is None:
        taken = {options.name_column, options.run_at}
        return [name for name in names if name not in taken]
    for name in wanted:
        if name not in names:
            raise BadInput(f"payload names the column {name!r}; there are {', '.join(names)}")
    return list(wanted)
