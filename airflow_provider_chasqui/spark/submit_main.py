"""The application that the operators submit: writes a path, a table or a query, or replays.

Its one argument is the specification in JSON. It contains no secret, because `connection` finds
the server.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.spark.source import register


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the rows or replay the dead letters that the specification describes.

    :param arguments: the command line; `sys.argv` if None.
    :raises InvalidArgument: if there is not exactly one argument.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 1:
        raise InvalidArgument(
            f"expected one argument, got {len(arguments)}; this application is submitted by "
            "ChasquiSparkSubmitOperator and ChasquiSparkReplayOperator"
        )
    spec: dict[str, Any] = json.loads(arguments[0])
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    rows = (
        _read_dead_letters(spark, spec["replay"])
        if "replay" in spec
        else _read_source(spark, spec["source"])
    )
    writer = rows.write.format("chasqui").mode("append")
    for key, value in spec["options"].items():
        writer = writer.option(key, value)
    writer.save()
    spark.stop()


def _read_source(spark: SparkSession, source: dict[str, Any]) -> DataFrame:
    if "sql" in source:
        return spark.sql(source["sql"])
    if "table" in source:
        return spark.table(source["table"])
    reader = spark.read.format(source.get("format", "parquet"))
    for key, value in source.get("options", {}).items():
        reader = reader.option(key, value)
    return reader.load(source["path"])


def _read_dead_letters(spark: SparkSession, replay: dict[str, Any]) -> DataFrame:
    reader = spark.read.format("chasqui").option("view", "dlq")
    for key, value in replay["options"].items():
        reader = reader.option(key, value)
    ids = reader.load().where(replay["where"]).select("entry_id")
    limit = replay.get("limit")
    return ids if limit is None else ids.limit(limit)


if __name__ == "__main__":
    main()
