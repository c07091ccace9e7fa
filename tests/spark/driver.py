"""A Spark driver of its own, started by a test that wants to see it die in its commit."""

from __future__ import annotations

import json
import os
import sys

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession

from tests.spark import faults


def main() -> None:
    order = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(order["master"]).appName("chasqui-dying")
    for key, value in order["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.sparkContext.addPyFile(order["zip"])
    register_pickle_by_value(faults)
    jvm = spark.sparkContext._jvm
    pids = (jvm.java.lang.ProcessHandle.current().pid(), os.getpid())  # type: ignore[union-attr]
    spark.dataSource.register(faults.source(calls=order["calls"], kill=pids))
    rows = spark.range(0, order["rows"], 1, 4).selectExpr("id", "concat('row ', id) AS text")
    writer = rows.write.format("chasqui-broken").mode("append")
    for key, value in order["options"].items():
        writer = writer.option(key, value)
    writer.save()
    print("the driver has outlived its commit")


if __name__ == "__main__":
    main()
