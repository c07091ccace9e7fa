"""The Spark operators in Airflow, with spark-submit, a cluster and workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.core.codec import encode_delayed_member, encode_envelope
from airflow_provider_chasqui.core.command import as_int, redis_command
from airflow_provider_chasqui.core.commands import staged_writes
from airflow_provider_chasqui.core.commands.staged_writes import StagedPart, StagedWriteOptions
from airflow_provider_chasqui.core.outcome import Unrecoverable
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.operators.spark_submit import ChasquiSparkSubmitOperator
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import Dags, connection_json, working
from tests.provider.test_assets import task_instance
from tests.provider.test_enqueue import asset_event_extra

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
ROOT = str(HERE.parents[1])
EXAMPLES = HERE.parents[1] / "example_dags"


@pytest.fixture
def airflow(
    cluster: Any, native_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Any]:
    """Return a function that runs a DAG file, connected to the cluster and the test server."""
    from airflow.utils.db import initdb

    from tests.spark.cluster import spark_env

    initdb()
    for name, value in spark_env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SPARK_CONF_DIR", str(cluster.folder / "conf"))
    monkeypatch.delenv("PYTHONPATH", raising=False)  # the driver imports the package from the zip
    monkeypatch.setenv(
        "AIRFLOW_CONN_CHASQUI_DEFAULT", connection_json(native_server.url, native_server.dialect)
    )
    spark = {"conn_type": "spark", "host": cluster.url}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))

    def run(file: Path, dag_id: str, date: Any = None, **conf: Any) -> Any:
        bundle = {
            "name": "spark",
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(file.parent)},
        }
        name = "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"
        monkeypatch.setenv(name, json.dumps([bundle]))
        return Dags(file).run(dag_id, date, **conf)

    return run


@pytest.fixture
def dag_file(tmp_path: Path) -> Any:
    """Return a function that writes a DAG with one Spark operator."""

    def write(operator: str, dag_id: str, **arguments: Any) -> Path:
        module = {"Submit": "spark_submit", "Replay": "spark_replay"}[operator]
        name = f"ChasquiSpark{operator}Operator"
        (tmp_path / "dags").mkdir(exist_ok=True)
        file = tmp_path / "dags" / "one.py"
        file.write_text(
            f"from airflow.sdk import DAG\n"
            f"from airflow_provider_chasqui.operators.{module} import {name}\n"
            f"with DAG({dag_id!r}, schedule=None):\n"
            f"    {name}(task_id='it', **{arguments!r})\n"
        )
        return file

    return write


@pytest.fixture
def example_queue(native_server: Server) -> Iterator[Queue]:
    """Return the queue of the examples, emptied."""
    with Queue("newsletters", native_server.url) as queue:
        names = [queue.keys.stream, queue.keys.dlq, queue.keys.delayed, queue.keys.events]
        queue.client.execute(redis_command("DEL", *names, parse=as_int))
        yield queue


def test_the_example_writes_a_batch_waits_and_summarises(
    airflow: Any, example_queue: Queue, native_server: Server
) -> None:
    payloads: list[Any] = []
    with working(native_server, example_queue.name, lambda job: payloads.append(job.payload)):
        run = airflow(EXAMPLES / "spark_write.py", "spark_write")
    assert run.state == "success", run.states()
    assert run.xcom("summarise") == "1000 of 1000 newsletters were sent"
    assert {payload["customer"] for payload in payloads} == set(range(0, 2000, 2))
    assert len(payloads) == 1000
    assert payloads[0]["profile"]["tier"] in ("gold", "blue")


def interrupt_write(queue: Queue) -> None:
    """Commit a write of three rows as batch `s`, without publishing them."""
    staging_key = queue.keys.staged_part("s", "w", 0, 0)
    for index in range(3):
        job = encode_envelope(f"batch:s:0:{index}", encode_payload({"id": index}), 1)
        queue.client.execute(
            redis_command("RPUSH", staging_key, encode_delayed_member(b"", job), parse=as_int)
        )
    commit = staged_writes.commit(
        queue.keys, "s", "w", [StagedPart(0, staging_key, 3)], StagedWriteOptions(), 1
    )
    assert queue.client.run_flow(commit).state == "publishing"


def test_an_interrupted_write_is_completed_without_a_submission(
    airflow: Any, queue: Queue, dag_file: Any, native_server: Server
) -> None:
    interrupt_write(queue)
    file = dag_file(
        "Submit",
        queue.name,
        queue_name=queue.name,
        batch_id="s",
        source_sql="SELECT 1",
        spark_binary="spark3-submit",
        wait_for_completion=True,
        deferrable=True,
    )
    payloads: list[Any] = []
    with working(native_server, queue.name, lambda job: payloads.append(job.payload["id"])):
        run = airflow(file, queue.name)
    assert run.state == "success"
    assert sorted(payloads) == [0, 1, 2]
    assert run.xcom("it") == {
        "queue_name": queue.name,
        "batch_id": "s",
        "written_batch_id": "s",
        "total": 3,
        "done": 3,
        "dead": 0,
    }


@pytest.mark.parametrize("wait", [False, True])
def test_an_asset_event_contains_the_batch_and_its_counts(
    airflow: Any, queue: Queue, native_server: Server, tmp_path: Path, wait: bool
) -> None:
    interrupt_write(queue)
    (tmp_path / "dags").mkdir()
    file = tmp_path / "dags" / "one.py"
    file.write_text(
        f"""
from airflow.sdk import DAG
from airflow_provider_chasqui.assets.chasqui import create_asset
from airflow_provider_chasqui.operators.spark_submit import ChasquiSparkSubmitOperator

with DAG({queue.name!r}, schedule=None):
    ChasquiSparkSubmitOperator(
        task_id="it", queue_name={queue.name!r}, batch_id="s", source_sql="SELECT 1",
        wait_for_completion={wait}, deferrable=True, wait_timeout="1m", progress_interval="5s",
        outlets=[create_asset(queue_name={queue.name!r}, host="redis")],
    )
"""
    )
    with working(native_server, queue.name, lambda job: None):
        run = airflow(file, queue.name)
    assert run.state == "success"
    extra = asset_event_extra(run)
    assert extra["handle"] == {"queue_name": queue.name, "batch_id": "s", "total": 3}
    assert (extra["count"], extra["batch"]) == (3, "s")
    assert [extra.get(name) for name in ("done", "dead", "lost")] == (
        [3, 0, 0] if wait else [None, None, None]
    )


@pytest.mark.parametrize("on_retry", ["replay", "reattach"])
def test_a_retry_replays_dead_jobs_or_the_task_fails_without_retries(
    airflow: Any, queue: Queue, dag_file: Any, native_server: Server, on_retry: str
) -> None:
    interrupt_write(queue)
    file = dag_file(
        "Submit",
        queue.name,
        queue_name=queue.name,
        batch_id="s",
        source_sql="SELECT 1",
        wait_for_completion=True,
        deferrable=True,
        on_retry=on_retry,
        retries=1,
        retry_delay=0.0,
    )
    payloads: list[Any] = []

    async def handle(job: Any) -> None:
        payloads.append(job.payload["id"])
        if payloads.count(1) == 1 and job.payload["id"] == 1:
            raise Unrecoverable("not yet")

    with working(native_server, queue.name, handle):
        run = airflow(file, queue.name)
    assert run.state == ("success" if on_retry == "replay" else "failed")
    assert sorted(payloads) == ([0, 1, 1, 2] if on_retry == "replay" else [0, 1, 2])


def test_a_clear_cancels_the_batch_and_writes_another_one(queue: Queue) -> None:
    def batch_id_of(ti: Any, **arguments: Any) -> str:
        operator = ChasquiSparkSubmitOperator(task_id="it", **arguments)
        return operator._prepare_batch_id({"ti": ti}, queue)  # type: ignore[typeddict-item]

    first_try, cleared = task_instance(), task_instance(try_number=2, max_tries=3)
    first = batch_id_of(first_try)
    assert batch_id_of(task_instance(try_number=2)) == first  # a retry
    queue.add_batch([1, 2], batch_id=first)
    assert batch_id_of(cleared, on_clear="reattach") == first
    assert not queue.batch_progress(first).cancelled
    assert batch_id_of(cleared) == f"{first}~c1"
    assert queue.batch_progress(first).cancelled
    assert batch_id_of(cleared, batch_id="s") == "s~c1"
    assert batch_id_of(cleared, batch_id="s", application_writes=True) == "s"


def test_without_spark_the_error_names_the_extra(
    airflow: Any, queue: Queue, dag_file: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    file = dag_file(
        "Submit",
        queue.name,
        queue_name=queue.name,
        source_sql="SELECT 1",
        spark_binary="spark3-submit",
    )
    assert airflow(file, queue.name).state == "failed"
    assert "airflow-provider-chasqui[pyspark]" in "".join(capfd.readouterr())


def test_dead_letters_are_analysed_and_selected_ones_replayed(
    airflow: Any, example_queue: Queue, native_server: Server
) -> None:
    def fail(job: Any) -> None:
        if job.payload["customer"] % 3 == 0:
            raise ValueError("no such street")
        raise TimeoutError("the post is slow")

    tiers = ["gold", "blue"]
    payloads = [{"customer": n, "profile": {"tier": tiers[n % 2]}} for n in range(60)]
    from airflow_provider_chasqui.core.retry import RetryPolicy

    batch = example_queue.add_batch(payloads, retry=RetryPolicy(1))
    with working(native_server, example_queue.name, fail):
        assert example_queue.wait_batch(batch.batch_id).dead == 60

    # In its own process, because @task.pyspark stops an existing session.
    script = HERE / "run_dag.py"
    command_line = [sys.executable, str(script), str(EXAMPLES / "spark_replay.py"), "spark_replay"]
    local = json.dumps({"conn_type": "spark", "host": "local[2]"})
    environment = os.environ | {"PYTHONPATH": ROOT, "AIRFLOW_CONN_SPARK_DEFAULT": local}
    process = subprocess.run(command_line, env=environment, capture_output=True, timeout=500)
    assert process.returncode == 0, process.stderr.decode()[-3000:]
    [line] = [line for line in process.stdout.splitlines() if line.startswith(b'{"state"')]
    run = json.loads(line)
    assert run["state"] == "success", process.stdout.decode()[-3000:]
    counts = run["analyse"]
    assert {key.partition(":")[0]: value for key, value in counts.items()} == {
        "ValueError": 20,
        "TimeoutError": 40,
    }
    assert run["replay"] == {
        "matched": 20,
        "affected": 20,
        "missing": 0,
        "max_replays_reached": 0,
        "unreadable": 0,
    }
    assert len(example_queue.dead_letters(limit=100)) == 40
