"""ChasquiCollectOperator: results and failures of a batch in files and tables."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.outcome import Unrecoverable
from airflow_provider_chasqui.operators.collect import ChasquiCollectOperator
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import HERE, Dags, connect, working
from tests.support.memory import run_and_measure

pytestmark = [pytest.mark.xdist_group("airflow-inline"), pytest.mark.timeout(180)]


@pytest.fixture(params=["native", "portable"])
def connected(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Server:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    connect(monkeypatch, server)
    return server


@pytest.fixture
def test_dags(dags: Callable[[Path], Dags], connected: Server) -> Dags:
    return dags(HERE / "dags")


async def double(job: Any) -> Any:
    if job.payload % 10 == 3:
        raise Unrecoverable("a three")
    return {"double": job.payload * 2}


def run_batch(server: Server, queue: Queue, batch_id: str = "b", **config: Any) -> None:
    """Send 1000 jobs and run them. Every tenth dies."""
    queue.add_batch(range(1000), keys=[f"k{n}" for n in range(1000)], batch_id=batch_id)
    with working(server, queue.name, double, **({"store_results": True} | config)):
        queue.wait_batch(batch_id)


def test_a_directory_has_all_outcomes_in_order(
    test_dags: Dags,
    queue: Queue,
    connected: Server,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run_batch(connected, queue)
    conf = {"queue": queue.name, "batch": "b", "folder": str(tmp_path)}
    run = test_dags.run("collect_directory", **conf)
    assert run.state == "success"
    path = f"{tmp_path}/results/"
    assert run.xcom("collect") == {
        **{"queue_name": queue.name, "batch_id": "b", "total": 1000, "done": 900, "dead": 100},
        "results": {"path": path, "rows": 1000, "files": 1},
    }
    assert "batch=b" in run.xcom("collect", "chasqui_link")
    rows = pq.read_table(path).to_pylist()
    assert [row["id"] for row in rows] == [f"k{n}" for n in range(1000)]
    assert rows[2] == {
        **{"id": "k2", "part": 0, "index": 2, "status": "done", "result": {"double": 4}},
        **{"error": None, "reason": None, "attempts": None},
    }
    assert (rows[3]["status"], rows[3]["error"], rows[3]["result"]) == (
        "dead",
        "Unrecoverable: a three",
        None,
    )
    # With dead jobs a retry writes the same files again, because a replay may change their errors.
    assert test_dags.run("collect_directory", **conf).xcom("collect") == run.xcom("collect")
    assert pq.read_table(path).to_pylist() == rows

    async def repaired(job: Any) -> Any:
        return {"double": job.payload * 2}

    queue.replay_dead_letters(batch_id="b")
    with working(connected, queue.name, repaired, store_results=True):
        queue.wait_batch("b")
    for _ in range(2):
        test_dags.run("collect_directory", **conf)
        results = pq.read_table(path).column("result").to_pylist()
        assert results == [{"double": n * 2} for n in range(1000)]
    assert "an earlier try wrote 1000 rows" in "".join(capfd.readouterr())


def test_files_are_written_to_another_filesystem(
    test_dags: Dags, queue: Queue, connected: Server
) -> None:
    from airflow.sdk.io.store import attach
    from fsspec.implementations.memory import MemoryFileSystem

    attach("memory", fs=MemoryFileSystem())
    run_batch(connected, queue, queue.name)
    run = test_dags.run("collect_object", queue=queue.name, batch=queue.name)
    assert run.state == "success"
    names = sorted(MemoryFileSystem().find(f"/bucket/{queue.name}"))
    assert [name.rpartition("/")[2] for name in names] == ["_SUCCESS", "part-00000.parquet"]
    with MemoryFileSystem().open(names[1], "rb") as source:
        assert pq.read_table(source).num_rows == 1000


def test_failures_have_a_file_of_their_own(
    test_dags: Dags, queue: Queue, connected: Server, tmp_path: Path
) -> None:
    run_batch(connected, queue)
    run = test_dags.run("collect_files", queue=queue.name, batch="b", folder=str(tmp_path))
    assert run.xcom("collect")["results"]["rows"] == 900
    table = pq.read_table(tmp_path / "good.parquet")
    assert table.column("double").to_pylist() == [n * 2 for n in range(1000) if n % 10 != 3]
    failed = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [row["key"] for row in failed] == [f"k{n}" for n in range(3, 1000, 10)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "good.parquet"]


def test_rows_are_inserted_into_a_table_exactly_once(
    test_dags: Dags, queue: Queue, connected: Server, tmp_path: Path
) -> None:
    database = sqlite3.connect(tmp_path / "results.db")
    columns = "batch_id TEXT, id TEXT, status TEXT, result TEXT, error TEXT, attempts INTEGER"
    database.execute(f"CREATE TABLE good ({columns})")
    database.execute('CREATE TABLE failed (batch_id TEXT, "index" INTEGER, error TEXT)')
    database.execute("INSERT INTO good (batch_id, id) VALUES ('other', 'x')")
    database.commit()
    run_batch(connected, queue)
    conf = {"queue": queue.name, "batch": "b", "folder": str(tmp_path), "table": "good"}
    for _ in range(2):
        run = test_dags.run("collect_table", **conf)
        assert run.xcom("collect")["results"]["rows"] == 900
        assert run.xcom("collect")["results"]["path"].startswith("SqlTable(name='good'")
    # After a clear the task sends another batch, whose rows replace those of the first.
    run_batch(connected, queue, "b~c1")
    test_dags.run("collect_table", **conf | {"batch": "b~c1"})
    rows = database.execute("SELECT * FROM good WHERE batch_id = 'b' ORDER BY rowid").fetchall()
    expected = [
        ("b", f"k{n}", "done", f'{{"double":{n * 2}}}', None, None)
        for n in range(1000)
        if n % 10 != 3
    ]
    assert rows == expected
    assert database.execute("SELECT count(*) FROM good").fetchone() == (901,)
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 100
    # A failed insert leaves the table as it was.
    database.execute("ALTER TABLE good RENAME COLUMN attempts TO tries")
    database.commit()
    assert test_dags.run("collect_table", **conf).state == "failed"
    assert database.execute("SELECT count(*) FROM good").fetchone() == (901,)
    database.close()


def test_an_unfinished_batch_is_not_collected_unless_it_is_wanted(
    test_dags: Dags, queue: Queue, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    queue.add_batch(range(3), batch_id="b")
    conf = {"queue": queue.name, "batch": "b", "folder": str(tmp_path)}
    assert test_dags.run("collect_directory", **conf).state == "failed"
    assert "3 jobs of the batch b have not finished" in "".join(capfd.readouterr())
    assert list(tmp_path.iterdir()) == []
    assert test_dags.run("collect_failures", **conf).state == "success"
    assert (tmp_path / "bad.jsonl").read_text().count("pending") == 3


def test_workers_without_results_are_named_as_the_cause(
    test_dags: Dags,
    queue: Queue,
    connected: Server,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run_batch(connected, queue, store_results=False)
    run = test_dags.run("collect_directory", queue=queue.name, batch="b", folder=str(tmp_path))
    assert run.state == "success"
    assert "no result of the 900 done jobs is stored" in "".join(capfd.readouterr())


def test_a_target_is_required() -> None:
    with pytest.raises(InvalidArgument, match="pass results, failures or both"):
        ChasquiCollectOperator(task_id="a", batch="b")
    with pytest.raises(InvalidArgument, match="have the name 'error'"):
        ChasquiCollectOperator(task_id="b", batch="b", results="x", key_column="error")


MEASURE = """
import sys
from fsspec.implementations.local import LocalFileSystem
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.result_files import ResultColumns, ResultTarget, write_results

url, path, batch_id = sys.argv[1:]
with Queue("memory-out", url) as queue:
    written, _ = write_results(
        lambda: queue.batch_result_pages(batch_id),
        ResultColumns("id"),
        ResultTarget(LocalFileSystem(), path),
    )
print(written.rows)
"""


def test_the_memory_does_not_grow_with_the_number_of_results(
    native_server: Server, tmp_path: Path
) -> None:
    from airflow_provider_chasqui.core.commands import consumer_group
    from airflow_provider_chasqui.core.payload import encode_payload
    from tests.support.manual_worker import take

    peaks = []
    with Queue("memory-out", native_server.url) as queue:
        for count in (80_000, 400_000):
            batch_id = f"b{count}"
            queue.add_batch(range(count), keys=range(count), batch_id=batch_id)
            while entries := take(queue, 5000):
                completions = [
                    consumer_group.Completion(
                        entry.id, entry.job.id, encode_payload({"value": entry.job.payload})
                    )
                    for entry in entries
                ]
                queue.client.execute(
                    consumer_group.ack_with_results(queue.keys, "default", completions)
                )
            output, peak = run_and_measure(
                MEASURE, native_server.url, f"{tmp_path}/{batch_id}", batch_id
            )
            assert output == str(count)
            peaks.append(peak)
    table = pq.read_table(f"{tmp_path}/b400000")
    assert table.column("id").to_pylist() == list(range(400_000))
    assert table.column("result").to_pylist() == [{"value": n} for n in range(400_000)]
    assert peaks[1] - peaks[0] < 60_000, f"kilobytes: {peaks}"
    assert peaks[1] < 300_000, f"kilobytes: {peaks}"
