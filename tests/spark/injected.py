"""A user's Spark application that uses the format "chasqui" without importing this package."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.range(0, 1000, 1, 4).selectExpr("id", "concat('row ', id) AS text")
rows.write.format("chasqui").option("jobName", "injected").mode("append").save()
jobs = spark.read.format("chasqui").option("queueName", sys.argv[1]).option("view", "jobs").load()
jobs.explain(True)
print(f"the queue {sys.argv[1]} has {jobs.count()} jobs")
if len(sys.argv) > 2:  # keep the Spark UI running until the test has read it
    deadline = time.monotonic() + 60
    while not Path(sys.argv[2]).exists() and time.monotonic() < deadline:
        time.sleep(0.1)
spark.stop()
