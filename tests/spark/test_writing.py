"""A DataFrame is written as a batch of jobs that workers run and a sensor can wait for."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from airflow_provider_chasqui.core.command import as_int, redis_command
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.spark.packaging import build_zip
from tests.conftest import Server
from tests.spark.writing import assert_exact, complete_all, entries, row_counts, write_batch

ROWS = 3000


@pytest.fixture(scope="module")
def rows(spark: Any) -> Any:
    return spark.range(0, ROWS, 1, 3).selectExpr("id", "concat('row ', id) AS text")


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "options",
    [
        {"delivery": "exactly_once"},
        {"delivery": "dedup", "dedupKey": "id"},
        {"delivery": "at_least_once"},
    ],
    ids=lambda options: options["delivery"],
)
def test_a_dataframe_is_written_as_a_batch_that_finishes(
    rows: Any, server: Server, queue_name: str, options: dict[str, str]
) -> None:
    with Queue(queue_name, server.url, dialect=server.dialect) as queue:
        options = options | {"dialect": server.dialect, "jobName": "mail", "source": "tests"}
        write_batch(rows, queue, "s", **options)
        assert_exact(queue, "s", ROWS)
        assert {entry.job.name for entry in entries(queue)} == {"mail"}
        assert queue.batch_progress("s").source == "tests"
        assert not queue.batch_progress("s").finished
        assert complete_all(queue) == ROWS
        progress = queue.wait_batch("s", timeout=timedelta(seconds=1))
        assert (progress.done, progress.dead, progress.remaining) == (ROWS, 0, 0)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_every_type_arrives_as_documented(spark: Any, queue: Queue) -> None:
    df = spark.sql(
        """
        SELECT 7Y AS tiny, 70000 AS number, -1L AS big, 0.5F AS real, 2.5D AS double, true AS yes,
          'é' AS text, X'00FF' AS raw, CAST(12.5 AS DECIMAL(6,2)) AS price,
          CAST(NULL AS INT) AS gap,
          DATE'2026-05-17' AS day, TIMESTAMP'2026-05-17 10:00:00 UTC' AS zoned,
          TIMESTAMP_NTZ'2026-05-17 10:00:00' AS wall, array(1, NULL) AS list,
          named_struct('a', 1, 'b', array(named_struct('c', 'x'))) AS nested,
          map('k', 1) AS pairs, map(1, array('v')) AS odd
        """
    )
    write_batch(df, queue, "s")
    [entry] = entries(queue)
    assert entry.job.payload == {
        "tiny": 7,
        "number": 70000,
        "big": -1,
        "real": 0.5,
        "double": 2.5,
        "yes": True,
        "text": "é",
        "raw": b"\x00\xff",
        "price": "12.50",
        "gap": None,
        "day": "2026-05-17",
        "zoned": "2026-05-17T10:00:00.000000Z",
        "wall": "2026-05-17T10:00:00.000000",
        "list": [1, None],
        "nested": {"a": 1, "b": [{"c": "x"}]},
        "pairs": {"k": 1},
        "odd": {1: ["v"]},
    }


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_columns_set_the_job_id_and_the_run_time(spark: Any, queue: Queue) -> None:
    df = spark.sql(
        "SELECT id, concat('order-', id) AS key, IF(id = 0, NULL, now() + INTERVAL 1 HOUR) AS at "
        "FROM range(3)"
    )
    write_batch(df, queue, "s", jobId="key", runAt="at", payload="id")
    [entry] = entries(queue)
    assert (entry.job.id, entry.job.payload) == ("order-0", {"id": 0})
    status = queue.job_status("order-2")
    assert status.state == "delayed"
    assert status.due_ms is not None
    assert abs(status.due_ms / 1000 - dt.datetime.now().timestamp() - 3600) < 120
    assert queue.cancel("order-2") == "cancelled"
    write_batch(df, queue, "s", jobId="key", runAt="at", payload="id")
    assert queue.depth().delayed == 1, "a batch with explicit job ids must be written once"


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_an_existing_batch_is_skipped_rejected_or_overwritten(rows: Any, queue: Queue) -> None:
    write_batch(rows.limit(0), queue, "empty")
    assert queue.batch_progress("empty").finished
    write_batch(rows, queue, "s")
    complete_all(queue)
    write_batch(rows, queue, "s")
    assert not entries(queue)
    with pytest.raises(PySparkException, match="CMQ-307"):
        write_batch(rows, queue, "s", onExisting="fail")
    write_batch(rows.limit(10), queue, "s", onExisting="overwrite")
    assert_exact(queue, "s", 10)
    assert queue.batch_progress("s").done == 0
    queue.add_batch_part("half", 0, [1])
    with pytest.raises(PySparkException, match="CMQ-307"):
        write_batch(rows, queue, "half")


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_invalid_writes_are_rejected_before_a_task_starts(
    spark: Any, rows: Any, queue: Queue
) -> None:
    with pytest.raises(PySparkException, match="cast it to a string"):
        write_batch(spark.sql("SELECT INTERVAL '1' DAY AS duration"), queue, "s")
    with pytest.raises(PySparkException, match="CHASQUI_CONNECTION"):
        write_batch(rows, queue, "s", password="secret")
    writer = rows.write.format("chasqui").option("queueName", queue.name)
    with pytest.raises(PySparkException, match="append mode"):
        writer.option("url", "redis://127.0.0.1:1").mode("overwrite").save()
    assert not row_counts(queue)


@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.timeout(600)
def test_chasquimq_runs_a_batch_written_by_spark(
    rows: Any, queue: Queue, native_server: Server
) -> None:
    """A ChasquiMQ worker and promoter run one batch at once and one with a delay."""
    from tests.interop.fleet import Peer, wait_for_runs

    record = f"runs:{queue.name}"
    write_batch(rows.where("id < 300"), queue, "now", jobName="mail")
    write_batch(rows.where("id < 50"), queue, "later", delay="100ms", retry="3")
    with Peer.start() as peer:
        number = peer.work(native_server.url, queue.name, record=record, plan={}, concurrency=4)
        runs = wait_for_runs(native_server.url, record, 350)
        peer.stop(number)
    assert len({run.id for run in runs}) == len(runs) == 350
    assert sorted(run.data["id"] for run in runs if run.name == "mail") == list(range(300))
    assert {run.id.rsplit(":", 2)[0] for run in runs} == {"batch:now", "batch:later"}


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_executors_import_the_package_from_the_zip(spark: Any) -> None:
    def module_path(_: Any) -> str:
        import airflow_provider_chasqui

        return str(airflow_provider_chasqui.__file__)

    paths = spark.sparkContext.parallelize(range(8), 8).map(module_path).distinct().collect()
    assert paths
    assert all("chasqui_spark.zip" in path for path in paths)


def test_the_zip_is_small_and_reproducible(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = build_zip(tmp_path / "a"), build_zip(tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size < 350_000


def test_a_missing_module_on_an_executor_is_named_in_the_error(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(build_zip(tmp_path))!r})\n"
        "sys.modules['redis'] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'redis' else real(name, *more)\n"
        "import airflow_provider_chasqui.spark.source\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=tmp_path)
    assert process.returncode == 1
    assert b"needs redis in the Python of the Spark driver and of every executor" in process.stderr


def test_the_zip_works_without_an_installed_package(tmp_path: Path, native_server: Server) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        f"sys.path[:0] = [{str(build_zip(tmp_path))!r}]\n"
        "import airflow_provider_chasqui; assert '.zip' in airflow_provider_chasqui.__file__\n"
        "import pyspark_chasqui; assert pyspark_chasqui.DefaultSource.name() == 'chasqui'\n"
        "from airflow_provider_chasqui.queue import Queue\n"
        f"queue = Queue('zipped', {native_server.url!r})\n"
        "queue.add_batch(range(3), batch_id='b'); print(queue.batch_progress('b').total)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=tmp_path)
    assert process.stdout.strip() == b"3", process.stderr.decode()
    with Queue("zipped", native_server.url) as queue:
        names = [queue.keys.stream, queue.keys.batch("b")]
        assert queue.client.execute(redis_command("DEL", *names, parse=as_int)) == 2
