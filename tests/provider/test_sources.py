"""DAG runs that send the rows of files, databases, functions and upstream tasks."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.operators._sources import open_source, read_files, read_sql
from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.sources import FileSource, RowOptions, SqlSource
from tests.conftest import Server
from tests.provider.conftest import HERE, Dags, connect
from tests.provider.test_enqueue import rendered_fields, waiting
from tests.support.memory import run_and_measure

pytestmark = [pytest.mark.xdist_group("airflow-inline"), pytest.mark.timeout(180)]
# Not a time of another test, because the rendered fields are found by the run id.
DAY = datetime(2026, 3, 1, 5, tzinfo=UTC)
TABLE = pa.table({"id": list(range(30)), "name": [f"n{n}" for n in range(30)], "x": [0.5] * 30})


@pytest.fixture(params=["native", "portable"])
def connected(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Server:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    connect(monkeypatch, server)
    return server


@pytest.fixture
def test_dags(dags: Callable[[Path], Dags], connected: Server) -> Dags:
    return dags(HERE / "dags")


def write_jsonl(table: Any, path: Path) -> None:
    with gzip.open(path, "wt") as out:
        out.writelines(json.dumps(row) + "\n" for row in table.to_pylist())


WRITERS: dict[str, Callable[[Any, Path], Any]] = {
    "parquet": lambda table, path: pq.write_table(table, path, row_group_size=4),
    "csv": csv.write_csv,
    "jsonl.gz": write_jsonl,
    "arrow": feather.write_feather,
    "orc": orc.write_table,
}


def read(source: FileSource, columns: list[str] | None = None) -> list[Any]:
    """Return all rows of files."""
    rows: list[Any] = []
    for item in read_files(source, columns):
        rows += [item] if isinstance(item, dict) else item.to_pylist()
    return rows


@pytest.mark.parametrize("ending", WRITERS)
def test_files_of_every_format_are_read_in_order(tmp_path: Path, ending: str) -> None:
    for number in (2, 0, 1):  # not the order in which they are read
        WRITERS[ending](TABLE.slice(number * 10, 10), tmp_path / f"part-{number}.{ending}")
    (tmp_path / "_SUCCESS").write_text("")
    rows = TABLE.to_pylist()
    assert read(FileSource(f"{tmp_path}/*.{ending}")) == rows
    assert read(FileSource(f"file://{tmp_path}")) == rows
    paths = [f"{tmp_path}/part-{number}.{ending}" for number in (1, 0)]
    assert read(FileSource(paths)) == rows[10:20] + rows[:10]


def test_a_partitioned_dataset_and_only_some_columns_are_read(tmp_path: Path) -> None:
    table = TABLE.append_column("day", pa.array(["1", "2", "3"] * 10))
    partitioning = ds.partitioning(pa.schema([("day", pa.string())]), flavor="hive")
    ds.write_dataset(table, tmp_path, format="parquet", partitioning=partitioning)
    rows = read(FileSource(str(tmp_path)), ["id", "day"])
    assert len(rows) == 30
    assert rows[0] == {"id": 0, "day": 1}
    with pytest.raises(InvalidArgument, match="no column 'missing'; its columns are id, name"):
        read(FileSource(str(tmp_path)), ["missing"])


def test_files_of_another_filesystem_are_read() -> None:
    """The filesystem in memory has directories and renames like an object storage."""
    from airflow.sdk.io.store import attach
    from fsspec.implementations.memory import MemoryFileSystem

    attach("memory", fs=MemoryFileSystem())
    filesystem = MemoryFileSystem()
    with filesystem.open("/bucket/rows/a.parquet", "wb") as out:
        pq.write_table(TABLE, out)
    assert read(FileSource("memory://bucket/rows/*.parquet")) == TABLE.to_pylist()


def test_files_that_cannot_be_read_are_explained(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no files"):
        read(FileSource(f"{tmp_path}/*.parquet"))
    (tmp_path / "a.xml").write_text("<a/>")
    with pytest.raises(InvalidArgument, match=r"the format of .*a\.xml is not known"):
        read(FileSource(f"{tmp_path}/a.xml"))
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n\n{"a":\n')
    with pytest.raises(InvalidArgument, match=r"line 3 of .*bad\.jsonl is not JSON"):
        read(FileSource(f"{tmp_path}/bad.jsonl"))
    late = "n\n" + "1\n" * 2_000_000 + "text\n"
    (tmp_path / "late.csv").write_text(late)
    with pytest.raises(InvalidArgument, match=r"late\.csv cannot be read.*schema="):
        read(FileSource(f"{tmp_path}/late.csv"))
    assert len(read(FileSource(f"{tmp_path}/late.csv", schema={"n": "string"}))) == 2_000_001


def test_a_path_is_rendered_and_its_rows_are_sent_once(
    test_dags: Dags, queue: Queue, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    WRITERS["parquet"](TABLE, tmp_path / "2026-03-01.parquet")
    conf = {"queue": queue.name, "path": f"{tmp_path}/2026-03-01.parquet"}
    run = test_dags.run("source_path", DAY, **conf)
    assert run.state == "success"
    handle = run.xcom("send")
    assert handle["total"] == 30
    assert [job.payload for job in waiting(queue)] == [{"id": n, "n": f"n{n}"} for n in range(30)]
    assert [result.key for result in queue.batch_results(handle["batch_id"])] == list(range(30))
    assert rendered_fields(run, "send")["source"] == conf["path"]
    # The same rows again: nothing is sent. Other rows: the batch is replaced.
    assert test_dags.run("source_path", DAY, **conf).xcom("send") == handle
    assert len(waiting(queue)) == 30
    WRITERS["parquet"](TABLE.slice(1), tmp_path / "2026-03-01.parquet")
    changed = test_dags.run("source_path", DAY, **conf).xcom("send")
    assert changed["batch_id"] == handle["batch_id"] + "~g2"
    assert changed["total"] == 29
    assert queue.batch_progress(handle["batch_id"]).cancelled
    assert "this try has other payloads" in "".join(capfd.readouterr())


def test_other_forms_of_paths(test_dags: Dags, queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"at": "2026-01-01T00:00:00"}\n')
    path = f"file://{tmp_path}/a.jsonl"
    assert test_dags.run("source_object_path", queue=queue.name, path=path).state == "success"
    (tmp_path / "a.csv").write_text("code;n\n007;1\n")
    path = f"{tmp_path}/a.csv"
    assert test_dags.run("source_typed_csv", queue=queue.name, path=path).state == "success"
    asset = Path(tempfile.gettempdir(), f"chasqui-source-asset-{os.getpid()}.jsonl")
    asset.write_text('{"asset": 1}\n')
    try:
        assert test_dags.run("source_asset", queue=queue.name).state == "success"
    finally:
        asset.unlink()
    assert [job.payload for job in waiting(queue)] == [
        {"at": "2026-01-01T00:00:00"},
        {"code": "007", "n": 1},
        {"asset": 1},
    ]


def test_sql_and_functions(test_dags: Dags, queue: Queue, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "rows.db") as database:
        database.execute("CREATE TABLE people (id INTEGER, name TEXT)")
        database.executemany("INSERT INTO people VALUES (?, ?)", [(n, f"n{n}") for n in range(30)])
    conf = {"queue": queue.name, "folder": str(tmp_path), "table": "people", "first": 9}
    run = test_dags.run("source_sql", **conf)
    assert run.state == "success"
    expected = [{"id": n, "name": f"n{n}"} for n in range(9, 30)]
    assert [job.payload for job in waiting(queue)] == expected
    assert "FROM people" in rendered_fields(run, "send")["source"]
    run = test_dags.run("source_function", DAY + timedelta(hours=1), queue=queue.name, count=3)
    assert [job.payload for job in waiting(queue)[21:]] == [
        {"id": n, "day": "2026-03-01"} for n in range(3)
    ]
    assert rendered_fields(run, "send")["source"] == "<function read_rows>"


def test_sql_columns_need_different_names(tmp_path: Path) -> None:
    source = SqlSource(
        "SELECT 1 AS a, 2 AS a", hook=lambda: _Hook(sqlite3.connect(tmp_path / "x.db"))
    )
    with pytest.raises(InvalidArgument, match="two columns with the same name: a, a"):
        list(read_sql(source))
    nothing = SqlSource("SELECT 1 WHERE 0", hook=lambda: _Hook(sqlite3.connect(tmp_path / "x.db")))
    assert list(read_sql(nothing)) == []


class _Hook:
    def __init__(self, connection: Any):
        self._connection = connection

    def get_conn(self) -> Any:
        return self._connection


def test_the_output_of_a_task_is_a_source(
    test_dags: Dags, queue: Queue, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"file": 1}\n')
    run = test_dags.run("source_upstream", queue=queue.name, path=f"{tmp_path}/a.jsonl")
    states = run.states()
    assert states["none_of_a_task"] == "failed"
    assert "source is None: the upstream task was skipped" in "".join(capfd.readouterr())
    assert [job.payload for job in waiting(queue)].count({"file": 1}) == 2
    assert {"id": 1, "name": "{{ ds }}"} in [job.payload for job in waiting(queue)]
    assert rendered_fields(run, "rows_of_a_task")["source"] == "<list of 2 rows>"


def test_a_decorated_function_returns_a_source(
    test_dags: Dags, queue: Queue, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"file": 1}\n')
    run = test_dags.run("source_decorated", queue=queue.name, path=f"{tmp_path}/a.jsonl")
    assert run.state == "success"
    assert [job.payload for job in waiting(queue)] == [{"id": n} for n in range(20)] + [{"file": 1}]
    handle = run.xcom("table")
    assert [row.key for row in queue.batch_results(handle["batch_id"])] == list(range(20))


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="need source, but batch was given"):
        ChasquiEnqueueOperator(task_id="a", batch=[1], key_column="id")
    operator = ChasquiEnqueueOperator(task_id="b", source=iter([1]))
    with pytest.raises(InvalidArgument, match="source cannot be an iterator"):
        operator.source.chunks({}, RowOptions())  # type: ignore[union-attr, typeddict-item]
    assert open_source([1], RowOptions()) == [1]


MEASURE = """
import sys
from airflow_provider_chasqui.operators._sources import open_source
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.sources import RowOptions, encode_source

url, path, batch_id = sys.argv[1:]
options = RowOptions(key_column="id")
with Queue("memory", url) as queue:
    batch = queue.add_encoded_batch(
        encode_source(open_source(path, options), options), batch_id=batch_id
    )
print(batch.total)
"""


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_the_memory_does_not_grow_with_the_number_of_rows(
    native_server: Server, tmp_path: Path, ending: str
) -> None:
    peaks = []
    for count in (20_000, 400_000):
        table = pa.table({"id": range(count), "text": [f"{n:0100d}" for n in range(count)]})
        path = tmp_path / f"{count}.{ending}"
        if ending == "parquet":
            pq.write_table(table, path, row_group_size=count)
        elif ending == "csv":
            csv.write_csv(table, path)
        else:
            with path.open("w") as out:
                out.writelines(json.dumps(row) + "\n" for row in table.to_pylist())
        output, peak = run_and_measure(MEASURE, native_server.url, str(path), f"{ending}{count}")
        assert output.splitlines()[-1] == str(count)
        peaks.append(peak)
    with Queue("memory", native_server.url) as queue:
        queue.cancel_batch(f"{ending}400000")
    assert peaks[1] - peaks[0] < 60_000, f"kilobytes: {peaks}"
    # More than 210 MB of it are the imports of Airflow, pyarrow and pandas.
    assert peaks[1] < 320_000, f"kilobytes: {peaks}"


def test_csv_files_may_have_different_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    (tmp_path / "b.csv").write_text("id,email\n2,ada@example.org\n")
    (tmp_path / "c.csv").write_text("id,email\n")
    rows = [
        row for table in read_files(FileSource(f"{tmp_path}/*.csv")) for row in table.to_pylist()
    ]
    assert rows == [{"id": 1}, {"id": 2, "email": "ada@example.org"}]
