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

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.redis_client.target import RedisTarget
from airflow_provider_chasqui.spark import connection
from airflow_provider_chasqui.spark.options import ReadOptions, WriteOptions, with_defaults

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ChasquiDataSource(DataSource):
    """Jobs to and from a queue.

        register(spark)
        df.write.format("chasqui").option("queueName", "emails").option("batchId", "s1") \\
            .mode("append").save()
        spark.read.format("chasqui").option("queueName", "emails").option("view", "dlq").load()
    """

    _default_target: RedisTarget | None = None

    def __init__(self, options: MutableMapping[str, str]):
        super().__init__(options)
        self._target: RedisTarget | None = None

    @classmethod
    def name(cls) -> str:
        return "chasqui"

    def schema(self) -> str:
        from airflow_provider_chasqui.spark.views import view_columns

        return view_columns(ReadOptions.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from airflow_provider_chasqui.spark.reader import ViewReader

        return ViewReader(self._resolve_target(), ReadOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from airflow_provider_chasqui.spark.stream_reader import ViewStreamReader

        return ViewStreamReader(self._resolve_target(), ReadOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from airflow_provider_chasqui.spark.writer import ChasquiWriter, ReplayWriter

        _require_append_mode(overwrite)
        options = WriteOptions.parse(with_defaults(self.options, dict(os.environ)))
        if options.action == "replay":
            return ReplayWriter(self._resolve_target(), options, schema)
        return ChasquiWriter(self._resolve_target(), options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from airflow_provider_chasqui.spark.stream_writer import ChasquiStreamWriter

        _require_append_mode(overwrite)
        options = WriteOptions.parse(self.options, streaming=True)
        if options.action == "replay":
            raise InvalidArgument(
                "letters are replayed by a batch write; in a stream use foreachBatch"
            )
        return ChasquiStreamWriter(self._resolve_target(), options, schema)

    def _resolve_target(self) -> RedisTarget:
        # Kept, because later steps of a stream run in processes that may lack the environment.
        if self._target is None:
            self._target = connection.resolve(self.options, self._default_target)
        return self._target


def _require_append_mode(overwrite: bool) -> None:
    if overwrite:
        raise InvalidArgument(
            'a queue is only appended to: .mode("append"), or outputMode("append")'
        )


def register(spark: SparkSession, server: RedisTarget | str | None = None) -> None:
    """Make the format "chasqui" known to a session, with the server that it is to use.

    Without a server it is looked for where it is used: option url, CHASQUI_CONNECTION, --files.
    Our code is sent to the executors, unless it came in a zip itself.
    """
    _send_code(spark)
    source: Any = ChasquiDataSource
    if server is not None:
        # Made here, the class travels by value: the login is in no option and no conf.
        source = type(
            "ChasquiDataSource",
            (ChasquiDataSource,),
            {"_default_target": RedisTarget.coerce(server)},
        )
    spark.dataSource.register(source)


@cache
def _code_zip() -> str:
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
        spark.addArtifacts(_code_zip(), pyfile=True)
        return
    if not str(context.master).startswith("local"):
        context.addPyFile(_code_zip())
