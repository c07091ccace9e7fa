"""Writes survive the death of the driver and of the server, and concurrent publishers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from airflow_provider_chasqui.core.commands import staged_writes
from airflow_provider_chasqui.queue import Queue
from tests.spark import faults
from tests.spark.writing import assert_exact, queue_url, row_counts, staging_keys, write_batch
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.timeout(600)]

ROWS = 20_000
ROOT = Path(__file__).parents[2]


def start_driver(cluster: Any, queue: Queue, batch_id: str, calls: int | None) -> Any:
    from tests.spark.cluster import spark_env

    spec = {
        "master": cluster.url,
        "zip": str(cluster.zip),
        "rows": ROWS,
        "calls": calls,
        "conf": {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.cores.max": "2",
            "spark.ui.enabled": "false",
        },
        "options": {"queueName": queue.name, "url": queue_url(queue), "batchId": batch_id},
    }
    # A file, because processes that the driver started outlive it and would keep a pipe open.
    with (cluster.folder / f"driver-{queue.name}.log").open("wb") as out:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "tests/spark/driver.py"), json.dumps(spec)],
            env=os.environ | spark_env() | {"PYTHONPATH": str(ROOT)},
            cwd=cluster.folder,
            stdout=out,
            stderr=out,
        )


@pytest.fixture
def second(queue: Queue) -> Any:
    with Queue(f"{queue.name}-2", queue_url(queue)) as second_queue:
        yield second_queue


def test_a_killed_driver_publishes_all_or_nothing(
    cluster: Any, spark: Any, queue: Queue, second: Queue
) -> None:
    """One driver dies in the middle of its commit, one between its last task and its commit."""
    drivers = {
        queue.name: start_driver(cluster, queue, "s", 2),
        second.name: start_driver(cluster, second, "s", None),
    }
    for name, driver in drivers.items():
        exit_code = driver.wait(timeout=500)
        assert exit_code == -signal.SIGKILL, cluster.log(f"driver-{name}")[-3000:]
    assert 0 < sum(row_counts(queue).values()) < ROWS
    assert not row_counts(second)
    assert staging_keys(second), "the staged rows must exist until their TTL expires"

    rows = spark.range(0, ROWS, 1, 3).selectExpr("id", "concat('row ', id) AS text")
    write_batch(rows, queue, "s")
    write_batch(rows, second, "s")
    assert_exact(queue, "s", ROWS)
    assert_exact(second, "s", ROWS)


def test_several_processes_publish_one_write_concurrently(spark: Any, queue: Queue) -> None:
    rows = spark.range(0, ROWS, 1, 4).selectExpr("id")
    spark.dataSource.register(faults.faulty_source(calls=1))
    with pytest.raises(PySparkException, match="injected commit failure"):
        write_batch(rows, queue, "s", format="chasqui-faulty")
    barrier = threading.Barrier(4)
    states = []

    def publish() -> None:
        with Queue(queue.name, queue_url(queue)) as own:
            barrier.wait()
            states.append(own.client.run_flow(staged_writes.publish(own.keys, "s")))

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(state.state, state.total) for state in states] == [("done", ROWS)] * 4
    assert_exact(queue, "s", ROWS)


def kill_once_staged(server: RedisServer, name: str) -> None:
    with Queue(name, server.url) as queue:
        while len(staging_keys(queue)) < 3:
            time.sleep(0.05)
    server.kill()
    server.restart()


def test_the_server_is_killed_during_staging_and_during_publishing(
    spark: Any, redis86_binary: Path, queue_name: str
) -> None:
    rows = spark.range(0, ROWS, 1, 4).selectExpr("id")
    with (
        RedisServer.start(redis86_binary, aof=True) as server,
        Queue(queue_name, server.url) as queue,
    ):
        spark.dataSource.register(faults.faulty_source(faults.slow_tasks(0.2)))
        killer = threading.Thread(target=kill_once_staged, args=(server, queue.name))
        killer.start()
        with suppress(PySparkException):  # the job may fail; Airflow would then retry it
            write_batch(rows, queue, "s", format="chasqui-faulty")
        killer.join()
        write_batch(rows, queue, "s")
        assert_exact(queue, "s", ROWS)

        spark.dataSource.register(faults.faulty_source(calls=2))
        with pytest.raises(PySparkException, match="injected commit failure"):
            write_batch(rows, queue, "t", format="chasqui-faulty")
        published = sum(row_counts(queue).values())
        assert published > ROWS
        server.kill()
        server.restart()
        write_batch(rows, queue, "t")
        assert queue.batch_progress("t").total == ROWS
        assert set(row_counts(queue).values()) == {2}, "each row must exist once per batch"
        assert staging_keys(queue) == []
