"""A Spark driver in its own process, for tests that kill it during its commit."""

from __future__ import annotations

import json
import os
import sys

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession

from tests.spark import faults


def main() -> None:
    spec = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(spec["master"]).appName("chasqui-killed-driver")
    for key, value in spec["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.sparkContext.addPyFile(spec["zip"])
    register_pickle_by_value(faults)
    jvm = spark.sparkContext._jvm
    pids = (jvm.java.lang.ProcessHandle.current().pid(), os.getpid())  # type: ignore[union-attr]
    spark.dataSource.register(faults.faulty_source(calls=spec["calls"], kill=pids))
    rows = spark.range(0, spec["rows"], 1, 4).selectExpr("id", "concat('row ', id) AS text")
    writer = rows.write.format("chasqui-faulty").mode("append")
    for key, value in spec["options"].items():
        writer = writer.option(key, value)
    writer.save()
    print("the driver was not killed in its commit")


if __name__ == "__main__":
    main()
