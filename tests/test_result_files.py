"""Files of results: their columns and types, their sizes, and what an interruption leaves."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.results import BatchResult
from airflow_provider_chasqui.result_files import (
    ResultColumns,
    ResultTarget,
    SqlTable,
    WrittenFiles,
    write_results,
)

pytestmark = pytest.mark.unit


def result(index: int, value: Any, key: Any = None, status: Any = "done") -> BatchResult:
    error = None if status == "done" else "no"
    return BatchResult(f"batch:b:0:{index}", 0, index, key, status, value, error)


def page(*values: Any) -> list[BatchResult]:
    return [result(index, value) for index, value in enumerate(values)]


def write(
    path: str, pages: list[list[BatchResult]], filesystem: Any = None, **options: Any
) -> tuple[WrittenFiles | None, WrittenFiles | None]:
    columns = ResultColumns(options.pop("key_column", None), options.pop("schema", None))
    failures = options.pop("failures", None)
    manifest = options.pop("manifest", {"batch_id": "b"})
    filesystem = filesystem or LocalFileSystem()
    return write_results(
        lambda: pages,
        columns,
        ResultTarget(filesystem, path, **options),
        None if failures is None else ResultTarget(filesystem, failures, **options),
        manifest,
    )


@pytest.mark.parametrize(
    ("pages", "kind"),
    [
        ([[1], [2.5]], pa.float64()),
        ([[None], ["a"]], pa.string()),
        ([[None], [None]], pa.null()),
        ([[[1.5]], [[2, 3]]], pa.list_(pa.float64())),
        ([[{"a": 1}], [{"a": None, "b": "x"}]], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([[b"raw"], [None]], pa.binary()),
        ([[], []], pa.null()),
    ],
)
def test_the_type_of_the_results_is_inferred_from_all_pages(
    tmp_path: Path, pages: list[list[Any]], kind: Any
) -> None:
    path = str(tmp_path / "out.parquet")
    write(path, [page(*values) for values in pages])
    table = pq.read_table(path)
    assert table.schema.field("result").type == kind
    assert table.num_rows == sum(map(len, pages))


@pytest.mark.parametrize(
    "pages",
    [
        [[1], ["text"]],
        [[1, "text"]],
        [[{}], [{"a": 1}]],
        [[{"deep": [{}]}]],
        [[2**64 - 1], [-1]],
        [[{str(n): n for n in range(1001)}]],
    ],
)
def test_results_without_a_common_type_are_json(tmp_path: Path, pages: list[list[Any]]) -> None:
    path = str(tmp_path / "out.parquet")
    write(path, [page(*values) for values in pages])
    column = pq.read_table(path).column("result")
    assert column.type == pa.string()
    assert [json.loads(text) for text in column.to_pylist()] == list(chain(*pages))


def test_columns_are_those_of_the_key_the_job_and_the_schema(tmp_path: Path) -> None:
    rows = [
        result(0, {"label": "a", "score": 1, "more": 2}, ["x", 1]),
        result(1, None, ["y", 2], "dead"),
    ]
    path = str(tmp_path / "out.parquet")
    schema = {"label": "string", "score": "float64"}
    write(path, [rows], key_column=["name", "id"], schema=schema)
    table = pq.read_table(path)
    assert table.to_pylist() == [
        {
            **{"name": "x", "id": 1, "part": 0, "index": 0, "status": "done"},
            **{"label": "a", "score": 1.0, "error": None, "reason": None, "attempts": None},
        },
        {
            **{"name": "y", "id": 2, "part": 0, "index": 1, "status": "dead"},
            **{"label": None, "score": None, "error": "no", "reason": None, "attempts": None},
        },
    ]
    assert table.schema.field("score").type == pa.float64()
    lines = str(tmp_path / "out.jsonl")
    write(lines, [rows], key_column=["name", "id"], schema=schema)
    found = [json.loads(line) for line in Path(lines).read_text().splitlines()]
    assert found == [row | {"score": row["score"] and 1} for row in table.to_pylist()]


def test_the_key_is_a_column_if_the_batch_has_keys(tmp_path: Path) -> None:
    path = str(tmp_path / "out.parquet")
    write(path, [page(1, 2)])
    assert pq.read_table(path).column_names[0] == "part"
    write(path, [[result(0, 1, "a"), result(1, 2, "b")]])
    assert pq.read_table(path).column("key").to_pylist() == ["a", "b"]
    write(path, [[result(0, 1, "a")]], key_column="id")
    assert pq.read_table(path).column("id").to_pylist() == ["a"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key_column": "status"}, "two columns of the results have the name 'status'"),
        ({"schema": {"index": "int64"}}, "two columns of the results have the name 'index'"),
        ({"schema": "int64"}, "does not fit its type int64"),
        ({"schema": {"a": "int64"}}, "so that it must be a mapping"),
        ({"key_column": ["a", "b"]}, "key_column has 2 names"),
        ({"file_format": "csv"}, "must be parquet or jsonl"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        write(f"{tmp_path}/out", [[result(0, "text", 7)]], **options)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
    with pytest.raises(InvalidArgument, match="the same path"):
        write(f"{tmp_path}/out", [], failures=f"{tmp_path}/out")
    with pytest.raises(InvalidArgument, match="exactly one of conn_id and hook"):
        SqlTable("t")
    with pytest.raises(InvalidArgument, match="no column 'x'"):
        SqlTable("t", "c", ["x"]).column_names(ResultColumns())


@pytest.mark.parametrize("file_format", ["parquet", "jsonl"])
@pytest.mark.parametrize(
    "filesystem", [LocalFileSystem(), MemoryFileSystem()], ids=["local", "object"]
)
def test_a_directory_is_cut_by_size_and_replaced(
    tmp_path: Path, filesystem: Any, file_format: str
) -> None:
    folder = f"{tmp_path}/out"
    text = "x" * 1024 * 1024  # 33 of them are more than a row group
    pages = [[result(n, text) for n in range(start, start + 33)] for start in (0, 33, 66)]
    options: dict[str, Any] = {"file_format": file_format, "max_file_bytes": 1}
    written, _ = write(folder, pages, filesystem, **options)
    assert written is not None
    names = [f"part-0000{n}.{file_format}" for n in range(3)]
    assert (written.rows, written.files, written.reused) == (99, names, False)
    assert file_names(filesystem, folder) == ["_SUCCESS", *names]
    assert rows_of(filesystem, folder) == list(range(99))
    # The same outcomes again are not written again, others replace them.
    again, _ = write(folder, [], filesystem, **options)
    assert again is not None
    assert (again.rows, again.files, again.reused) == (99, names, True)
    write(folder, [page(1)], filesystem, manifest={"batch_id": "c"}, **options)
    assert file_names(filesystem, folder) == ["_SUCCESS", names[0]]
    assert rows_of(filesystem, folder) == [0]


def test_jobs_that_are_not_done_have_their_own_files(tmp_path: Path) -> None:
    rows = [
        result(n, n, status=status)
        for n, status in enumerate(["done", "dead", "done", "cancelled"])
    ]
    good, bad = str(tmp_path / "good"), str(tmp_path / "bad.jsonl")
    written = write(good, [rows], failures=bad)
    assert [files.rows for files in written if files] == [2, 2]
    assert pq.read_table(good).column("index").to_pylist() == [0, 2]
    assert [json.loads(line)["status"] for line in Path(bad).read_text().splitlines()] == [
        "dead",
        "cancelled",
    ]


class FailingFileSystem(LocalFileSystem):
    """A filesystem on which the operation with this number fails, and all after it."""

    def __init__(self, operations: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.remaining = operations

    def _count(self) -> None:
        self.remaining -= 1
        if self.remaining < 0:
            raise OSError("the process was killed here")

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        self._count()
        return super().open(path, mode, **kwargs)

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        self._count()
        super().mv(path1, path2, **kwargs)

    def rm(self, path: str, *args: Any, **kwargs: Any) -> None:
        self._count()
        super().rm(path, *args, **kwargs)


def file_names(filesystem: Any, folder: str) -> list[str]:
    filesystem.invalidate_cache()
    return sorted(str(path).rpartition("/")[2] for path in filesystem.ls(folder, detail=False))


def rows_of(filesystem: Any, folder: str) -> list[int]:
    """Return the indexes in all files of a directory, in order."""
    rows: list[int] = []
    for name in file_names(filesystem, folder):
        if name.startswith("_"):
            continue
        with filesystem.open(f"{folder}/{name}", "rb") as source:
            if name.endswith("jsonl"):
                rows += [json.loads(line)["index"] for line in source]
            else:
                rows += pq.read_table(source).column("index").to_pylist()
    return rows


@pytest.mark.parametrize("before", ["nothing", "larger", "smaller"])
def test_an_interruption_anywhere_leaves_no_wrong_success(tmp_path: Path, before: str) -> None:
    """A retry completes the directory, whichever operation was the last of the killed try."""
    pages = [[result(n, "x" * 500) for n in range(start, start + 2)] for start in range(0, 10, 2)]
    options: dict[str, Any] = {"file_format": "jsonl", "max_file_bytes": 1}
    local = LocalFileSystem()
    for operations in range(100):
        folder = f"{tmp_path}/{operations}"
        if before != "nothing":
            old = pages * 2 if before == "larger" else pages[:1]
            write(folder, old, manifest={"batch_id": "old"}, **options)
        try:
            write(folder, pages, FailingFileSystem(operations, skip_instance_cache=True), **options)
        except OSError:
            finished = False
        else:
            finished = True
        if Path(folder, "_SUCCESS").exists():
            manifest = json.loads(Path(folder, "_SUCCESS").read_text() or "{}")
            if manifest.get("batch_id") == "b":
                assert rows_of(local, folder) == list(range(10))
        write(folder, pages, **options)
        names = [f"part-0000{n}.jsonl" for n in range(5)]
        assert file_names(local, folder) == ["_SUCCESS", *names]
        assert rows_of(local, folder) == list(range(10))
        if finished:
            assert operations > 10
            return
    pytest.fail("no number of operations was enough")


def test_failures_may_be_a_file_in_the_directory_of_the_results(tmp_path: Path) -> None:
    pages = [[result(0, 1), result(1, None, status="dead")]]
    folder = tmp_path / "out"
    written = write(f"{folder}/", pages, failures=f"{folder}/failed.jsonl")
    assert [files.rows for files in written if files is not None] == [1, 1]
    assert json.loads((folder / "failed.jsonl").read_text())["status"] == "dead"
    assert not list(folder.glob("_temporary-*"))
