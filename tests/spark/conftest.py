"""A cluster and a session that all Spark tests of a process share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.spark.java_home import use_java
from tests.conftest import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.cluster import Cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("spark"):
            # All in one test process, because several clusters would compete for the cores.
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(autouse=True)
def java(request: pytest.FixtureRequest) -> None:
    """Set JAVA_HOME for tests that start Spark, and for their child processes."""
    if request.node.get_closest_marker("spark"):
        use_java()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    from tests.spark.cluster import Cluster

    with Cluster() as running:
        yield running


@pytest.fixture(scope="session")
def spark(cluster: Cluster) -> Iterator[SparkSession]:
    """Return a session on the cluster. Executors import this package from the zip only."""
    from pyspark.cloudpickle import register_pickle_by_value
    from pyspark.sql import SparkSession

    from airflow_provider_chasqui.spark.source import register
    from tests.spark import faults
    from tests.spark.cluster import spark_env

    os.environ |= spark_env()
    # The JVM also starts Python processes on this machine, for planning and commits.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    settings = {
        "spark.master": cluster.url,
        "spark.app.name": "chasqui-tests",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "600m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "2",
        "spark.cores.max": "4",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.minTaskRuntime": "1s",
        "spark.speculation.quantile": "0.5",
        "spark.sql.warehouse.dir": str(cluster.folder / "warehouse"),
    }
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    register_pickle_by_value(faults)
    yield session
    session.stop()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture
def queue(native_server: Server, queue_name: str) -> Iterator[Queue]:
    with Queue(queue_name, native_server.url) as queue:
        yield queue
