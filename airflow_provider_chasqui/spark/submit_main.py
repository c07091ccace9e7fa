"""The submitted application: ships a path, a table or a query, or replays letters.

Its one argument is the order in JSON. It holds no secret: the server is found as in `connection`.
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
    """Carry out the order that the operator wrote."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1:
        raise InvalidArgument("this application is submitted by ChasquiSparkSubmitOperator")
    order: dict[str, Any] = json.loads(given[0])
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    rows = (
        _read_dead_letters(spark, order)
        if "replay" in order
        else _read_source(spark, order["source"])
    )
    writer = rows.write.format("chasqui").mode("append")
    for key, value in order["options"].items():
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


def _read_dead_letters(spark: SparkSession, spec: dict[str, Any]) -> DataFrame:
    reader = spark.read.format("chasqui").option("view", "dlq")
    for key, value in spec["replay"]["options"].items():
        reader = reader.option(key, value)
    letters = reader.load().where(spec["replay"]["where"])
    most = spec["replay"].get("limit")
    return letters.select("entry_id") if most is None else letters.select("entry_id").limit(most)


if __name__ == "__main__":
    main()
