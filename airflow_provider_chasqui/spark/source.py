"""The data source class, and its registration with a Spark session."""

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
    r"""The Spark data source that writes jobs to a queue and reads its views.

        register(spark)
        df.write.format("chasqui").option("queueName", "emails").option("batchId", "b1") \
            .mode("append").save()
        spark.read.format("chasqui").option("queueName", "emails").option("view", "dlq").load()

    docs/spark.md lists the options.
    """

    _default_target: RedisTarget | None = None

    def __init__(self, options: MutableMapping[str, str]):
        super().__init__(options)
        self._target: RedisTarget | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "chasqui"

    def schema(self) -> str:
        """Return the columns of the view as DDL."""
        from airflow_provider_chasqui.spark.views import view_columns

        return view_columns(ReadOptions.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        from airflow_provider_chasqui.spark.reader import ViewReader

        return ViewReader(self._resolve_target(), ReadOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query."""
        from airflow_provider_chasqui.spark.stream_reader import ViewStreamReader

        return ViewStreamReader(self._resolve_target(), ReadOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query.

        :raises InvalidArgument: if the mode is not append, or an option is invalid.
        """
        from airflow_provider_chasqui.spark.writer import ChasquiWriter, ReplayWriter

        _require_append_mode(overwrite)
        options = WriteOptions.parse(with_defaults(self.options, dict(os.environ)))
        if options.action == "replay":
            return ReplayWriter(self._resolve_target(), options, schema)
        return ChasquiWriter(self._resolve_target(), options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a streaming query.

        :raises InvalidArgument: if the mode is not append, or an option is invalid.
        """
        from airflow_provider_chasqui.spark.stream_writer import ChasquiStreamWriter

        _require_append_mode(overwrite)
        options = WriteOptions.parse(self.options, streaming=True)
        if options.action == "replay":
            raise InvalidArgument(
                "a streaming write does not support action=replay; use foreachBatch and a batch "
                "write"
            )
        return ChasquiStreamWriter(self._resolve_target(), options, schema)

    def _resolve_target(self) -> RedisTarget:
        # Cached, because later steps of a streaming query run in processes that may lack the
        # environment variable.
        if self._target is None:
            self._target = connection.resolve(self.options, self._default_target)
        return self._target


def _require_append_mode(overwrite: bool) -> None:
    if overwrite:
        raise InvalidArgument(
            'a queue only supports the append mode: use .mode("append") or outputMode("append")'
        )


def register(spark: SparkSession, server: RedisTarget | str | None = None) -> None:
    """Register the format "chasqui" with a Spark session and send its code to the executors.

    :param spark: the session.
    :param server: the server or its URL. By default each read or write finds it in the option
        url, in CHASQUI_CONNECTION and in a file sent with --files.
    """
    _send_code(spark)
    source: Any = ChasquiDataSource
    if server is not None:
        # A class created here is pickled by value, so the credentials are in no option or conf.
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
    except Exception:  # Spark Connect has no context
        spark.addArtifacts(_code_zip(), pyfile=True)
        return
    if not str(context.master).startswith("local"):
        context.addPyFile(_code_zip())
