"""Columns become the bytes that msgpack would have written row by row."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_chasqui.core.codec import (
    decode_delayed_member,
    encode_delayed_member,
    encode_envelope,
)
from airflow_provider_chasqui.core.errors import InvalidArgument, PayloadTooLarge
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.spark.options import WriteOptions
from airflow_provider_chasqui.spark.row_encoder import MessagePackEncoder, RowEncoder

INTS = [0, 1, -1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1]
INTS += [-32, -33, -128, -129, -32768, -32769, -(2**31), -(2**31) - 1, -(2**63)]
SIZES = (0, 15, 16, 31, 32, 255, 256, 65535, 65536)

COLUMNS = {
    "int": pa.array([*INTS, None]),
    "byte": pa.array([-128, None, 127], pa.int8()),
    "float": pa.array([0.1, None, float("inf"), -0.0]),
    "real": pa.array([0.5, None], pa.float32()),
    "bool": pa.array([True, False, None]),
    "text": pa.array([*("x" * size for size in SIZES), "é", None]),
    "large text": pa.array(["a", None], pa.large_string()),
    "bytes": pa.array([*(b"x" * size for size in SIZES), b"\xff", None]),
    "null": pa.nulls(3),
    "list": pa.array([[1, None, 3], [], None, [5] * 20]),
    "list of lists": pa.array([[["a"], None, []], None]),
    "struct": pa.array([{"a": 1, "b": {"c": "x", "d": [1, 2]}}, None, {"a": None, "b": None}]),
    "map": pa.array([[("k", 1), ("j", None)], None, []], pa.map_(pa.string(), pa.int64())),
    "map of numbers": pa.array([[(1, ["a"])], []], pa.map_(pa.int32(), pa.list_(pa.string()))),
    "list of maps": pa.array([[[("k", 1)], []]], pa.list_(pa.map_(pa.string(), pa.int64()))),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_is_written_as_msgpack_writes_it(name: str) -> None:
    column = COLUMNS[name]
    for piece in (column, column.slice(1), column.slice(0, 1), column.slice(0, 0)):
        rows = piece.to_pylist(maps_as_pydicts="strict")
        if pa.types.is_floating(piece.type):
            rows = [None if row is None else float(row) for row in rows]
        assert MessagePackEncoder().encode_column(piece).to_pylist() == [
            msgpack.packb(row) for row in rows
        ]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.text(max_size=40),
            st.none() | st.lists(st.none() | st.binary(max_size=8), max_size=20),
            st.none() | st.floats(allow_nan=False),
        ),
        max_size=30,
    ),
    st.integers(0, 5),
)
def test_any_rows_are_written_as_msgpack_writes_them(rows: list[Any], start: int) -> None:
    kinds = (pa.int64(), pa.string(), pa.list_(pa.binary()), pa.float64())
    names = ["a", "b", "c", "d"]
    columns = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
    batch = pa.record_batch(columns, names).slice(start)
    written = MessagePackEncoder().encode_rows(names, batch.columns)
    assert written.to_pylist() == [msgpack.packb(row) for row in batch.to_pylist()]


def test_times_and_decimals_have_a_form_to_choose() -> None:
    moment = dt.datetime(2026, 5, 17, 12, 30, 15, 250_000)
    zoned = pa.array([moment], pa.timestamp("us", "Europe/Amsterdam"))
    plain = pa.array([moment, None], pa.timestamp("us"))
    money = pa.array([Decimal("12.50"), Decimal("-0.01")], pa.decimal128(10, 2))

    def read(column: Any, **form: str) -> list[Any]:
        return [
            msgpack.unpackb(raw)
            for raw in MessagePackEncoder(**form).encode_column(column).to_pylist()
        ]

    assert read(zoned) == ["2026-05-17T12:30:15.250000Z"]
    assert read(plain) == ["2026-05-17T12:30:15.250000", None]
    assert read(zoned, timestamps="ms") == [1779021015250]
    assert read(pa.array([dt.date(2026, 5, 17)])) == ["2026-05-17"]
    assert read(money) == ["12.50", "-0.01"]
    assert read(money, decimals="float") == [12.5, -0.01]


def test_a_type_without_a_form_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="cast it"):
        MessagePackEncoder().encode_column(pa.array([dt.timedelta(1)]))


def framed(batch: pa.RecordBatch, **options: str) -> list[bytes]:
    """The arguments of the first call, taken out of their RESP frames."""
    framer = RowEncoder(WriteOptions.parse({"queueName": "q", **options}), batch.schema.names)
    frames = framer.encode_jobs(batch, "batch:s:3:", 7, 1_700_000_000_000)
    data = b"".join(bytes(packed.data) for _, packed in frames.split_calls(2, 10_000))
    found = []
    while data:
        size, _, rest = data[1:].partition(b"\r\n")
        found.append(rest[: int(size)])
        data = rest[int(size) + 2 :]
    return found


def test_a_row_is_staged_as_the_member_that_the_codec_writes() -> None:
    batch = pa.record_batch({"id": [1, 2, 3], "kind": ["a", None, "bé"]})
    retry = RetryPolicy(5, Backoff("exponential", 1000, 60_000, 2.0, 10))
    spec = (
        '{"max_attempts": 5, "backoff": {"kind": "exponential", "delay": "1s", "max_delay": "1m", '
        '"multiplier": 2.0, "jitter": "10ms"}}'
    )
    staged = framed(batch, jobNameColumn="kind", retry=spec)
    for index, (row, raw) in enumerate(zip(batch.to_pylist(), staged, strict=True), 7):
        name = (row.pop("kind") or "").encode()
        body = msgpack.packb(row)
        job = encode_envelope(f"batch:s:3:{index}", body, 1_700_000_000_000, 0, retry)
        assert raw == encode_delayed_member(name, job)


def test_columns_give_the_id_the_time_and_the_whole_payload() -> None:
    due = dt.datetime(2023, 11, 14, 22, 20)
    batch = pa.record_batch(
        {"key": ["x", "y"], "at": pa.array([due, None], pa.timestamp("us", "UTC")), "v": [1, 2]}
    )
    first, second = framed(batch, jobId="key", runAt="at", value="v", jobName="n")
    assert (first[:14], second[:14]) == (b"01700000400000", b"0" * 14)
    job = decode_delayed_member(first[14:])
    assert (job.id, job.name, job.payload) == ("x", "n", 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"payload": "id,nope"}, "payload names the column 'nope'"),
        ({"jobNameColumn": "nope"}, "jobNameColumn names the column 'nope'"),
        ({"jobId": "gap"}, "null or blank"),
        ({"jobId": "taken"}, "are for batches"),
        ({"jobNameColumn": "long"}, "at most 256 bytes"),
        ({"delay": "5"}, "a number with a unit"),
        ({"delay": "31d"}, "over maxDelay"),
        ({"jobName": "a", "jobNameColumn": "id"}, "not both"),
        ({"delivery": "dedup"}, "dedupKey"),
        ({"retry": "often"}, "number of attempts"),
        ({"batchId": "a/b"}, "a batch id has"),
        ({"colour": "red"}, "'colour' is not known"),
    ],
)
def test_what_cannot_be_is_refused_in_words(options: dict[str, str], words: str) -> None:
    batch = pa.record_batch(
        {"id": [1, 2], "gap": ["a", None], "taken": ["a", "batch:b:0:0"], "long": ["a", "b" * 257]}
    )
    with pytest.raises(InvalidArgument, match=words):
        framed(batch, **options)


def test_a_row_over_the_limit_is_refused() -> None:
    batch = pa.record_batch({"text": ["x" * 100]})
    with pytest.raises(PayloadTooLarge, match="limit is 50"):
        framed(batch, maxPayloadBytes="50")


def test_large_batches_are_cut_into_calls_by_rows_and_bytes() -> None:
    batch = pa.record_batch({"text": ["x" * 10, "y" * 5000, *["z"] * 10]})
    framer = RowEncoder(WriteOptions.parse({"queueName": "q"}), ["text"])
    frames = framer.encode_jobs(batch, "batch:s:0:", 0, 1)
    rows = [rows for rows, _ in frames.split_calls(4, 1000)]
    assert sum(rows) == 12
    assert max(rows) == 4
    assert b"".join(bytes(each.data) for _, each in frames.split_calls(4, 1000)) == b"".join(
        bytes(each.data) for _, each in frames.split_calls(100, 10**9)
    )
