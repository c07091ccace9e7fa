"""The row encoder writes the same bytes as msgpack and the codec."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_chasqui.arrow_encoder import MessagePackEncoder
from airflow_provider_chasqui.core.codec import (
    decode_delayed_member,
    encode_delayed_member,
    encode_envelope,
)
from airflow_provider_chasqui.core.errors import InvalidArgument, PayloadTooLarge
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.spark.options import WriteOptions
from airflow_provider_chasqui.spark.row_encoder import RowEncoder

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


def test_timestamps_and_decimals_have_two_formats() -> None:
    timestamp = dt.datetime(2026, 5, 17, 12, 30, 15, 250_000)
    zoned = pa.array([timestamp], pa.timestamp("us", "Europe/Amsterdam"))
    plain = pa.array([timestamp, None], pa.timestamp("us"))
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


def test_an_unsupported_type_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="cast it"):
        MessagePackEncoder().encode_column(pa.array([dt.timedelta(1)]))


def encoded_arguments(batch: pa.RecordBatch, **options: str) -> list[bytes]:
    """Return the encoded arguments, without RESP framing."""
    encoder = RowEncoder(WriteOptions.parse({"queueName": "q", **options}), batch.schema.names)
    rows = encoder.encode_jobs(batch, "batch:s:3:", 7, 1_700_000_000_000)
    data = b"".join(bytes(packed.data) for _, packed in rows.split_calls(2, 10_000))
    arguments = []
    while data:
        size, _, remaining = data[1:].partition(b"\r\n")
        arguments.append(remaining[: int(size)])
        data = remaining[int(size) + 2 :]
    return arguments


def test_a_row_is_encoded_like_a_delayed_member_of_the_codec() -> None:
    batch = pa.record_batch({"id": [1, 2, 3], "kind": ["a", None, "bé"]})
    retry = RetryPolicy(5, Backoff("exponential", 1000, 60_000, 2.0, 10))
    spec = (
        '{"max_attempts": 5, "backoff": {"kind": "exponential", "delay": "1s", "max_delay": "1m", '
        '"multiplier": 2.0, "jitter": "10ms"}}'
    )
    staged = encoded_arguments(batch, jobNameColumn="kind", retry=spec)
    for index, (row, raw) in enumerate(zip(batch.to_pylist(), staged, strict=True), 7):
        name = (row.pop("kind") or "").encode()
        body = msgpack.packb(row)
        job = encode_envelope(f"batch:s:3:{index}", body, 1_700_000_000_000, 0, retry)
        assert raw == encode_delayed_member(name, job)


def test_columns_provide_the_id_the_run_time_and_the_payload() -> None:
    due = dt.datetime(2023, 11, 14, 22, 20)
    batch = pa.record_batch(
        {"key": ["x", "y"], "at": pa.array([due, None], pa.timestamp("us", "UTC")), "v": [1, 2]}
    )
    first, second = encoded_arguments(batch, jobId="key", runAt="at", value="v", jobName="n")
    assert (first[:14], second[:14]) == (b"01700000400000", b"0" * 14)
    job = decode_delayed_member(first[14:])
    assert (job.id, job.name, job.payload) == ("x", "n", 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"payload": "id,nope"}, "payload names the column 'nope'"),
        ({"jobNameColumn": "nope"}, "jobNameColumn names the column 'nope'"),
        ({"jobId": "gap"}, "null or blank"),
        ({"jobId": "reserved"}, "reserved for batches"),
        ({"jobNameColumn": "long"}, "more than 256"),
        ({"delay": "5 parsecs"}, "delay must be"),
        ({"delay": "31d"}, "raise maxDelay"),
        ({"jobName": "a", "jobNameColumn": "id"}, "exclude each other"),
        ({"delivery": "dedup"}, "dedupKey"),
        ({"retry": "often"}, "number of attempts"),
        ({"batchId": "a/b"}, "a/b"),
        ({"color": "red"}, "unknown option 'color'"),
    ],
)
def test_invalid_options_are_rejected_with_a_clear_message(
    options: dict[str, str], message: str
) -> None:
    batch = pa.record_batch(
        {
            "id": [1, 2],
            "gap": ["a", None],
            "reserved": ["a", "batch:b:0:0"],
            "long": ["a", "b" * 257],
        }
    )
    with pytest.raises(InvalidArgument, match=message):
        encoded_arguments(batch, **options)


def test_a_payload_over_the_limit_is_rejected() -> None:
    batch = pa.record_batch({"text": ["x" * 100]})
    with pytest.raises(PayloadTooLarge, match="more than 50"):
        encoded_arguments(batch, maxPayloadBytes="50")


def test_large_batches_are_split_into_calls_by_rows_and_bytes() -> None:
    batch = pa.record_batch({"text": ["x" * 10, "y" * 5000, *["z"] * 10]})
    encoder = RowEncoder(WriteOptions.parse({"queueName": "q"}), ["text"])
    rows = encoder.encode_jobs(batch, "batch:s:0:", 0, 1)
    row_counts = [count for count, _ in rows.split_calls(4, 1000)]
    assert sum(row_counts) == 12
    assert max(row_counts) == 4
    assert b"".join(bytes(args.data) for _, args in rows.split_calls(4, 1000)) == b"".join(
        bytes(args.data) for _, args in rows.split_calls(100, 10**9)
    )


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("500ms", 500), ("10s", 10_000), ("1h30m", 5_400_000), ("1.5", 1500), ("2d", 172_800_000)],
)
def test_durations_have_the_same_grammar_as_in_the_cli(text: str, duration_ms: int) -> None:
    options = {"queueName": "q", "delay": text, "stagingTtl": text, "ttl": text}
    parsed = WriteOptions.parse(options)
    assert parsed.delay_ms == parsed.staging_ttl_ms == parsed.ttl_ms == duration_ms
