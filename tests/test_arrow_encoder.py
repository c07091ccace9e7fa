"""Types of Arrow tables that Spark does not write, compared with the encoder of Python values."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from airflow_provider_chasqui.arrow_encoder import MessagePackEncoder, split_batch
from airflow_provider_chasqui.core.payload import encode_payload

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, 127, 128, 2**32, 2**63 - 1, 2**63, 2**64 - 1, None], pa.uint64()),
        pa.array([], pa.uint64()),
        pa.array([0, 200, None], pa.uint8()),
        pa.array([0.5, None, -1.0], pa.float32()),
        pa.array(["a", None, "é" * 40], pa.string_view()),
        pa.array([b"a", None, b"b" * 300], pa.binary_view()),
        pa.array(["a", None, "b"], pa.large_string()),
        pa.array(["a", None, "a"]).dictionary_encode(),
        pa.array([[1, None], None, []], pa.large_list(pa.int32())),
        pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)),
        pa.array([{"a": {"b": [1]}}, None, {"a": None}]),
        pa.array([dt.time(12, 30), dt.time(1, 2, 3, 4), None], pa.time64("us")),
        pa.array([dt.time(12, 30), None], pa.time32("s")),
        pa.array([dt.date(2026, 3, 1), None], pa.date64()),
        pa.nulls(3),
    ],
    ids=lambda column: str(column.type),
)
def test_a_column_is_encoded_like_its_python_values(column: Any) -> None:
    encoded = MessagePackEncoder().encode_column(column).to_pylist()
    assert encoded == [encode_payload(value) for value in column.to_pylist()]


def test_nanoseconds_are_cut_off() -> None:
    column = pa.array([1_772_368_200_123_456_789, None], pa.timestamp("ns", "UTC"))
    encoded = MessagePackEncoder().encode_column(column).to_pylist()
    assert [msgpack.unpackb(raw) for raw in encoded] == ["2026-03-01T12:30:00.123456Z", None]
    (time,) = MessagePackEncoder().encode_column(pa.array([1_999], pa.time64("ns"))).to_pylist()
    assert msgpack.unpackb(time) == "00:00:00.000001"


def test_a_large_record_batch_is_split() -> None:
    batch = pa.record_batch({"text": ["x" * 1024 * 1024] * 100})
    pieces = list(split_batch(batch))
    assert len(pieces) == 4
    assert sum(piece.num_rows for piece in pieces) == 100
    assert list(split_batch(batch.slice(0, 0))) == []
