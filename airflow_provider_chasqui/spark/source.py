"""The data source itself: what Spark asks first, and how a session learns of it."""

from __future__ import annotations

import atexit
import os
from collections.abc import MutableMapping
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from airflow_provider_chasqui.core.errors import BadInput
from airflow_provider_chasqui.spark import connection
from airflow_provider_chasqui.spark.options import ReadOptions, WriteOptions, with_defaults
from airflow_provider_chasqui.store.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ChasquiDataSource(DataSource):
    """Jobs to and from a queue.

        register(spark)
        df.write.format("chasqui").option("queue", "emails").option("shipId", "s1") \\
            .mode("append").save()
        spark.read.format("chasqui").option("queue", "emails").option("view", "dlq").load()
    """

    _given: Target | None = None

    def __init__(self, options: MutableMapping[str, str]):
        super().__init__(options)
        self._target: Target | None = None

    @classmethod
    def name(cls) -> str:
        return "chasqui"

    def schema(self) -> str:
        from airflow_provider_chasqui.spark.views import columns_of

        return columns_of(ReadOptions.of(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from airflow_provider_chasqui.spark.reader import ViewReader

        return ViewReader(self._find(), ReadOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from airflow_provider_chasqui.spark.stream_reader import ViewStreamReader

        return ViewStreamReader(self._find(), ReadOptions.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from airflow_provider_chasqui.spark.replay import ReplayWriter
        from airflow_provider_chasqui.spark.writer import ShipWriter

        _append_only(overwrite)
        options = WriteOptions.of(with_defaults(self.options, dict(os.environ)))
        if options.action == "replay":
            return ReplayWriter(self._find(), options, schema)
        return ShipWriter(self._find(), options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from airflow_provider_chasqui.spark.stream_writer import ShipStreamWriter

        _append_only(overwrite)
        options = WriteOptions.of(self.options, stream=True)
        if options.action == "replay":
            raise BadInput("letters are replayed by a batch write; in a stream use foreachBatch")
        return ShipStreamWriter(self._find(), options, schema)

    def _find(self) -> Target:
        # Kept, because later steps of a stream run in processes that may lack the environment.
        if self._target is None:
            self._target = connection.find(self.options, self._given)
        return self._target


def _append_only(overwrite: bool) -> None:
    if overwrite:
        raise BadInput('a queue is only appended to: .mode("append"), or outputMode("append")')


def register(spark: SparkSession, server: Target | str | None = None) -> None:
    """Make the format "chasqui" known to a session, with the server that it is to use.

    Without a server it is looked for where it is used: option url, CHASQUI_CONNECTION, --files.
    Our code is sent to the executors, unless it came in a zip itself.
    """
    _send_code(spark)
    source: Any = ChasquiDataSource
    if server is not None:
        # Made here, the class travels by value: the login is in no option and no conf.
        source = type("ChasquiDataSource", (ChasquiDataSource,), {"_given": Target.of(server)})
    spark.dataSource.register(source)


@cache
def _zip() -> str:
    from airflow_provider_chasqui.spark.packaging import build_zip

    folder = Path(mkdtemp(prefix="chasqui-spark-"))
    atexit.register(rmtree, folder, ignore_errors=True)
    return str(build_zip(folder))


def _send_code(spark: SparkSession) -> None:
    if ".zip" in __file__:
        return
    try:
        context = spark.sparkContext
    except Exception:  # Spark Connect has no context, and another way
        spark.addArtifacts(_zip(), pyfile=True)
        return
    if not str(context.master).startswith("local"):
        context.addPyFile(_zip())
