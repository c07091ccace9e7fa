"""A DataFrame becomes a batch of jobs that workers run and a sensor can await."""

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
from tests.spark.writing import assert_exact, entries, numbers, settle_all, ship

ROWS = 3000


@pytest.fixture(scope="module")
def rows(spark: Any) -> Any:
    return spark.range(0, ROWS, 1, 3).selectExpr("id", "concat('row ', id) AS text")


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", [
    {"delivery": "exactly_once"}, {"delivery": "dedup", "dedupKey": "id"}, {"delivery": "at_least_once"},
], ids=lambda each: each["delivery"])  # fmt: skip
def test_a_ship_is_a_batch_that_ends(
    rows: Any, server: Server, queue_name: str, options: dict[str, str]
) -> None:
    with Queue(queue_name, server.url, dialect=server.dialect) as queue:
        wishes = options | {"dialect": server.dialect, "jobName": "mail", "source": "tests"}
        ship(rows, queue, "s", **wishes)
        assert_exact(queue, "s", ROWS)
        assert {entry.job.name for entry in entries(queue)} == {"mail"}
        assert queue.batch_progress("s").source == "tests"
        assert not queue.batch_progress("s").finished
        assert settle_all(queue) == ROWS
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
          DATE'2026-05-17' AS day, TIMESTAMP'2026-05-17 10:00:00 UTC' AS moment,
          TIMESTAMP_NTZ'2026-05-17 10:00:00' AS wall, array(1, NULL) AS list,
          named_struct('a', 1, 'b', array(named_struct('c', 'x'))) AS nested,
          map('k', 1) AS pairs, map(1, array('v')) AS odd
        """
    )
    ship(df, queue, "s")
    [entry] = entries(queue)
    assert entry.job.payload == {
        "tiny": 7, "number": 70000, "big": -1, "real": 0.5, "double": 2.5, "yes": True,
        "text": "é", "raw": b"\x00\xff", "price": "12.50", "gap": None, "day": "2026-05-17",
        "moment": "2026-05-17T10:00:00.000000Z", "wall": "2026-05-17T10:00:00.000000",
        "list": [1, None], "nested": {"a": 1, "b": [{"c": "x"}]}, "pairs": {"k": 1},
        "odd": {1: ["v"]},
    }  # fmt: skip


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_rows_say_when_and_under_which_id(spark: Any, queue: Queue) -> None:
    df = spark.sql(
        "SELECT id, concat('order-', id) AS key, IF(id = 0, NULL, now() + INTERVAL 1 HOUR) AS at "
        "FROM range(3)"
    )
    ship(df, queue, "s", jobId="key", runAt="at", payload="id")
    [now] = entries(queue)
    assert (now.job.id, now.job.payload) == ("order-0", {"id": 0})
    found = queue.job_status("order-2")
    assert found.state == "delayed"
    assert found.due_ms is not None
    assert abs(found.due_ms / 1000 - dt.datetime.now().timestamp() - 3600) < 120
    assert queue.cancel("order-2") == "cancelled"
    ship(df, queue, "s", jobId="key", runAt="at", payload="id")
    assert queue.depth().delayed == 1, "the ship is remembered, though it is no batch to await"


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_complete_ship_is_skipped_refused_or_sent_anew(rows: Any, queue: Queue) -> None:
    ship(rows.limit(0), queue, "empty")
    assert queue.batch_progress("empty").finished
    ship(rows, queue, "s")
    settle_all(queue)
    ship(rows, queue, "s")
    assert not entries(queue)
    with pytest.raises(PySparkException, match="CMQ-307"):
        ship(rows, queue, "s", onExisting="fail")
    ship(rows.limit(10), queue, "s", onExisting="overwrite")
    assert_exact(queue, "s", 10)
    assert queue.batch_progress("s").done == 0
    queue.add_batch_part("half", 0, [1])
    with pytest.raises(PySparkException, match="sent in another way"):
        ship(rows, queue, "half")


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_cannot_be_written_is_refused_before_a_task_starts(
    spark: Any, rows: Any, queue: Queue
) -> None:
    with pytest.raises(PySparkException, match="cast it to a string"):
        ship(spark.sql("SELECT INTERVAL '1' DAY AS span"), queue, "s")
    with pytest.raises(PySparkException, match="CHASQUI_CONNECTION"):
        ship(rows, queue, "s", password="secret")
    writer = rows.write.format("chasqui").option("queueName", queue.name)
    with pytest.raises(PySparkException, match="only appended to"):
        writer.option("url", "redis://127.0.0.1:1").mode("overwrite").save()
    assert not numbers(queue)


@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.timeout(600)
def test_the_real_chasquimq_runs_a_ship(rows: Any, queue: Queue, native_server: Server) -> None:
    """Their worker and their promoter: jobs for now from one ship, delayed ones from another."""
    from tests.interop.fleet import Peer, wait_for_runs

    record = f"runs:{queue.name}"
    ship(rows.where("id < 300"), queue, "now", jobName="mail")
    ship(rows.where("id < 50"), queue, "later", delay="100ms", retry="3")
    with Peer.start() as peer:
        number = peer.work(native_server.url, queue.name, record=record, plan={}, concurrency=4)
        found = wait_for_runs(native_server.url, record, 350)
        peer.stop(number)
    assert len({run.id for run in found}) == len(found) == 350
    assert sorted(run.data["id"] for run in found if run.name == "mail") == list(range(300))
    assert {run.id.rsplit(":", 2)[0] for run in found} == {"batch:now", "batch:later"}


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_executors_have_our_code_from_the_zip_alone(spark: Any) -> None:
    def home(_: Any) -> str:
        import airflow_provider_chasqui

        return str(airflow_provider_chasqui.__file__)

    homes = spark.sparkContext.parallelize(range(8), 8).map(home).distinct().collect()
    assert homes
    assert all("chasqui_spark.zip" in each for each in homes)


def test_the_zip_is_small_and_the_same_each_time(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = build_zip(tmp_path / "a"), build_zip(tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size < 250_000


def test_an_executor_that_lacks_something_says_what(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(build_zip(tmp_path))!r})\n"
        "sys.modules['redis'] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'redis' else real(name, *more)\n"
        "import airflow_provider_chasqui.spark.source\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=tmp_path)
    assert ended.returncode == 1
    assert b"needs redis in the Python of the Spark driver and of every executor" in ended.stderr


def test_the_zip_works_without_an_installed_package(tmp_path: Path, native_server: Server) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        f"sys.path[:0] = [{str(build_zip(tmp_path))!r}]\n"
        "import airflow_provider_chasqui; assert '.zip' in airflow_provider_chasqui.__file__\n"
        "import pyspark_chasqui; assert pyspark_chasqui.DefaultSource.name() == 'chasqui'\n"
        "from airflow_provider_chasqui.queue import Queue\n"
        f"queue = Queue('zipped', {native_server.url!r})\n"
        "queue.add_batch(range(3), batch_id='b'); print(queue.batch('b').total)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=tmp_path)
    assert ended.stdout.strip() == b"3", ended.stderr.decode()
    with Queue("zipped", native_server.url) as queue:
        names = [queue.keys.stream, queue.keys.batch("b")]
        assert queue.client.execute(redis_command("DEL", *names, parse=as_int)) == 2
