"""Conversion of values that MessagePack does not have, compared with the Spark writer."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from airflow_provider_chasqui.arrow_encoder import MessagePackEncoder
from airflow_provider_chasqui.core.batch import BatchPosition
from airflow_provider_chasqui.core.chunk_reader import encode_chunks
from airflow_provider_chasqui.core.errors import EncodeError
from airflow_provider_chasqui.core.payload import decode_payload, encode_payload

ZONE = timezone(timedelta(hours=2))
UUID_TEXT = "7f0b9c5e-51f6-4d7c-8d5f-0a5a3b2f5e11"


def encoded(value: Any) -> Any:
    return decode_payload(encode_payload(value))


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 3, 1, 12, 30),
        datetime(2026, 3, 1, 12, 30, 5, 123),
        datetime(2026, 3, 1, 12, 30, tzinfo=UTC),
        datetime(2026, 3, 1, 12, 30, 5, 123456, tzinfo=ZONE),
        date(2026, 3, 1),
        Decimal("1.10"),
        Decimal("-0.00000001"),
        Decimal("12345678901234567890.5"),
    ],
)
def test_a_value_is_encoded_as_the_spark_writer_does(value: Any) -> None:
    (spark,) = MessagePackEncoder().encode_column(pa.array([value])).to_pylist()
    assert encode_payload(value) == spark


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (UUID(UUID_TEXT), UUID_TEXT),
        (np.int64(7), 7),
        (np.uint8(7), 7),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.datetime64("2026-03-01T12:30:00", "ns"), "2026-03-01T12:30:00.000000"),
        (np.datetime64("2026-03-01"), "2026-03-01T00:00:00.000000"),
        (np.datetime64("NaT", "s"), None),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(["2026-03-01"], "datetime64[D]"), ["2026-03-01T00:00:00.000000"]),
        (pd.Timestamp("2026-03-01 12:30"), "2026-03-01T12:30:00.000000"),
        (pd.Timestamp("2026-03-01 12:30", tz="Europe/Berlin"), "2026-03-01T11:30:00.000000Z"),
        (pd.NaT, None),
        (pd.NA, None),
        (pd.Series([1, 2]), [1, 2]),
        (
            pd.Series([pd.Timestamp("2026-03-01", tz="UTC"), pd.NaT]),
            ["2026-03-01T00:00:00.000000Z", None],
        ),
    ],
)
def test_values_of_numpy_and_pandas_become_python_values(value: Any, expected: Any) -> None:
    assert encoded({"deep": [value]}) == {"deep": [expected]}


def test_the_key_of_a_value_without_a_conversion_is_named() -> None:
    payload = {"id": 1, "rows": [{"price": 1}, {"price": {1, 2}}]}
    with pytest.raises(EncodeError, match=r"the value of rows\[1\].price in the payload.*'set'"):
        encode_payload(payload)
    with pytest.raises(EncodeError, match=r"^\[CMQ-002\] the payload cannot .*'DataFrame'"):
        encode_payload(pd.DataFrame({"id": [1]}))
    with pytest.raises(EncodeError, match=r"the value of n .* does not fit into 64 bits"):
        encode_payload({"n": 2**64})


def test_the_job_of_a_value_without_a_conversion_is_named() -> None:
    with pytest.raises(EncodeError, match="the value of a in the payload") as raised:
        list(encode_chunks([{"a": 1}, {"a": object()}], None, BatchPosition("x", 0, 5)))
    assert raised.value.job_id == "batch:x:0:6"
