"""Processes that end in the middle of a ship: the driver, the server; and many publishers."""

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
from tests.spark.writing import assert_exact, leftovers, numbers, ship, where
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.timeout(600)]

ROWS = 20_000
ROOT = Path(__file__).parents[2]


def start_driver(cluster: Any, queue: Queue, ship_id: str, calls: int | None) -> Any:
    from tests.spark.cluster import spark_env

    order = {
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
        "options": {"queueName": queue.name, "url": where(queue), "batchId": ship_id},
    }
    # Into a file: what the driver has started outlives it, and would keep a pipe open.
    with (cluster.folder / f"driver-{queue.name}.log").open("wb") as out:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "tests/spark/driver.py"), json.dumps(order)],
            env=os.environ | spark_env() | {"PYTHONPATH": str(ROOT)},
            cwd=cluster.folder,
            stdout=out,
            stderr=out,
        )


@pytest.fixture
def second(queue: Queue) -> Any:
    with Queue(f"{queue.name}-2", where(queue)) as opened:
        yield opened


def test_a_driver_that_is_killed_leaves_all_or_nothing(
    cluster: Any, spark: Any, queue: Queue, second: Queue
) -> None:
    """One dies in the middle of its commit, one between its last task and its commit."""
    drivers = {
        queue.name: start_driver(cluster, queue, "s", 2),
        second.name: start_driver(cluster, second, "s", None),
    }
    for name, driver in drivers.items():
        ended = driver.wait(timeout=500)
        assert ended == -signal.SIGKILL, cluster.log(f"driver-{name}")[-3000:]
    assert 0 < sum(numbers(queue).values()) < ROWS
    assert not numbers(second)
    assert leftovers(second), "what was staged waits for its time to run out"

    rows = spark.range(0, ROWS, 1, 3).selectExpr("id", "concat('row ', id) AS text")
    ship(rows, queue, "s")
    ship(rows, second, "s")
    assert_exact(queue, "s", ROWS)
    assert_exact(second, "s", ROWS)


def test_many_publish_one_ship_at_once(spark: Any, queue: Queue) -> None:
    rows = spark.range(0, ROWS, 1, 4).selectExpr("id")
    spark.dataSource.register(faults.source(calls=1))
    with pytest.raises(PySparkException, match="broke on purpose"):
        ship(rows, queue, "s", format="chasqui-broken")
    ready, found = threading.Barrier(4), []

    def publish() -> None:
        with Queue(queue.name, where(queue)) as mine:
            ready.wait()
            found.append(mine.client.run_flow(staged_writes.publish(mine.keys, "s")))

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(each.state, each.total) for each in found] == [("done", ROWS)] * 4
    assert_exact(queue, "s", ROWS)


def kill_once_staged(server: RedisServer, name: str) -> None:
    with Queue(name, server.url) as queue:
        while len(leftovers(queue)) < 3:
            time.sleep(0.05)
    server.kill()
    server.restart()


def test_the_server_dies_while_tasks_stage_and_while_a_commit_publishes(
    spark: Any, redis86_binary: Path, queue_name: str
) -> None:
    rows = spark.range(0, ROWS, 1, 4).selectExpr("id")
    with (
        RedisServer.start(redis86_binary, aof=True) as server,
        Queue(queue_name, server.url) as queue,
    ):
        spark.dataSource.register(faults.source(faults.slowly(0.2)))
        killer = threading.Thread(target=kill_once_staged, args=(server, queue.name))
        killer.start()
        with suppress(PySparkException):  # Spark may give the job up, then Airflow would not
            ship(rows, queue, "s", format="chasqui-broken")
        killer.join()
        ship(rows, queue, "s")
        assert_exact(queue, "s", ROWS)

        spark.dataSource.register(faults.source(calls=2))
        with pytest.raises(PySparkException, match="broke on purpose"):
            ship(rows, queue, "t", format="chasqui-broken")
        published = sum(numbers(queue).values())
        assert published > ROWS
        server.kill()
        server.restart()
        ship(rows, queue, "t")
        assert queue.batch_progress("t").total == ROWS
        assert set(numbers(queue).values()) == {2}, "two ships, so each row twice"
        assert leftovers(queue) == []
