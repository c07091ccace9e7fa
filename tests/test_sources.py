"""Rows and tables as the jobs of a batch."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import msgpack
import pandas as pd
import pyarrow as pa
import pytest

from airflow_provider_chasqui.core.errors import EncodeError, InvalidArgument
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.sources import (
    FileSource,
    RowOptions,
    SqlSource,
    arrow_schema,
    encode_source,
)

ROWS = [{"id": n, "name": f"n{n}", "kind": "a" if n % 2 else "b"} for n in range(5)]


class Stream:
    """A table of another library, which is read through the Arrow stream interface."""

    def __init__(self, table: Any):
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def tables() -> Iterator[Any]:
    for row in ROWS:
        yield pa.table({name: [value] for name, value in row.items()})


SOURCES = {
    "rows": lambda: ROWS,
    "generator": lambda: (row for row in ROWS),
    "Arrow table": lambda: pa.Table.from_pylist(ROWS),
    "record batch": lambda: pa.RecordBatch.from_pylist(ROWS),
    "reader": lambda: pa.Table.from_pylist(ROWS).to_reader(),
    "pandas": lambda: pd.DataFrame(ROWS),
    "another library": lambda: Stream(pa.Table.from_pylist(ROWS)),
    "generator of tables": tables,
}


def encode(source: Any, **options: Any) -> tuple[list[Any], list[Any], list[str]]:
    """Return the payloads, the keys and the names of all jobs."""
    payloads: list[Any] = []
    keys: list[Any] = []
    names: list[str] = []
    for chunk in encode_source(source, RowOptions(**options)):
        payloads += map(msgpack.unpackb, chunk.payloads)
        keys += chunk.keys or ()
        names += chunk.job_names or ()
    return payloads, keys, names


@pytest.mark.unit
@pytest.mark.parametrize("name", SOURCES)
def test_every_kind_of_source_gives_the_same_jobs(name: str) -> None:
    source = SOURCES[name]
    assert encode(source()) == (ROWS, [], [])
    payloads, keys, names = encode(
        source(),
        columns=["name", "id"],
        rename={"id": "number"},
        key_column="id",
        job_name_column="kind",
    )
    assert payloads == [{"name": f"n{n}", "number": n} for n in range(5)]
    assert (keys, names) == ([0, 1, 2, 3, 4], ["b", "a", "b", "a", "b"])
    payloads, keys, _ = encode(source(), key_column=["kind", "id"], job_name_column="kind")
    assert payloads[1] == {"id": 1, "name": "n1"}
    assert keys[:2] == [["b", 0], ["a", 1]]


@pytest.mark.unit
@pytest.mark.parametrize("name", SOURCES)
def test_a_missing_column_is_named(name: str) -> None:
    for options in ({"columns": ["no"]}, {"key_column": "no"}, {"job_name_column": "no"}):
        with pytest.raises(
            InvalidArgument, match=r"no column 'no'; its columns are id, name, kind"
        ):
            encode(SOURCES[name](), **options)


@pytest.mark.unit
def test_rows_without_columns_are_payloads_of_any_kind() -> None:
    assert encode([1, "text", [2], {"a": 1}])[0] == [1, "text", [2], {"a": 1}]
    assert encode([]) == ([], [], [])
    with pytest.raises(InvalidArgument, match=r"row 1: the row is of the type int; it must be a"):
        encode([{"id": 1}, 7], key_column="id")
    for source in (7, "text", {"a": 1}):
        with pytest.raises(InvalidArgument, match="must be a table or an iterable of rows"):
            encode(source)


@pytest.mark.unit
def test_the_error_names_the_row() -> None:
    with pytest.raises(EncodeError, match=r"row 1500: .*the value of a"):
        encode([{"a": n if n != 1500 else object()} for n in range(2000)])


@pytest.mark.unit
def test_frames_with_objects_are_encoded_row_by_row() -> None:
    number = uuid.uuid4()
    frame = pd.DataFrame({"u": [number, "x"], "d": [Decimal("1.5"), None], "f": [0.5, None]})
    assert encode(frame)[0] == [
        {"u": str(number), "d": "1.5", "f": 0.5},
        {"u": "x", "d": None, "f": None},
    ]
    indexed = pd.DataFrame({"a": [1, 2]}, index=["x", "y"])
    assert encode(indexed)[0] == [{"a": 1}, {"a": 2}]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RowOptions(columns="id"), "columns must be a list"),
        (lambda: RowOptions(columns=["a"], rename={"b": "c"}), "which columns does not contain"),
        (lambda: RowOptions(rename={"a": "b"}).payload_columns(["a", "b"]), "the same name"),
        (lambda: FileSource("x", format="xml"), "format must be one of parquet"),
        (lambda: SqlSource("SELECT 1"), "exactly one of conn_id and hook"),
        (lambda: SqlSource("SELECT 1", "db", fetch_size=0), "fetch_size must be at least 1"),
        (lambda: arrow_schema({"a": "integer"}), "not the name of a type"),
    ],
)
def test_invalid_arguments_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        make()


@pytest.mark.unit
def test_types_have_names() -> None:
    schema = arrow_schema({"a": "int64", "b": "list<float32>", "c": pa.date32()})
    expected = [("a", pa.int64()), ("b", pa.list_(pa.float32())), ("c", pa.date32())]
    assert schema == pa.schema(expected)


def test_a_table_is_the_same_batch_as_its_rows(queue: Queue) -> None:
    """A retry may read the same rows in another form: nothing is sent twice."""
    rows = [
        {"n": n, "text": "x" * (n % 40), "at": date(2026, 1, 1 + n % 28)} for n in range(40_000)
    ]
    options = RowOptions(key_column="n")
    sent = queue.add_encoded_batch(encode_source(rows, options), batch_id="b")
    again = queue.add_encoded_batch(
        encode_source(pa.Table.from_pylist(rows), options), batch_id="b"
    )
    assert sent == again
    assert queue.depth().waiting == 40_000
    first = next(iter(queue.batch_results("b")))
    assert (first.key, first.status) == (0, "pending")
