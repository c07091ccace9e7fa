"""Spark counts dead letters by error, and the retryable ones are replayed.

Connections: `spark_default` (the Spark master) and `chasqui_default` (the Redis server).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow.sdk import dag, task

from airflow_provider_chasqui.operators.spark_replay import ChasquiSparkReplayOperator


@dag(start_date=datetime(2026, 1, 1), schedule=None, catchup=False)
def spark_replay() -> None:
    @task.pyspark(conn_id="spark_default")
    def analyse(spark: Any) -> dict[str, int]:
        """Count the dead letters by error, in the Spark session of the task."""
        from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
        from airflow_provider_chasqui.spark.source import register

        register(spark, ChasquiHook().settings.target)
        reader = spark.read.format("chasqui").option("queueName", "newsletters")
        dead_letters = reader.option("view", "dlq").load()
        counts = dead_letters.groupBy("error").count().collect()
        return {row["error"]: row["count"] for row in counts}

    replay = ChasquiSparkReplayOperator(
        task_id="replay",
        queue_name="newsletters",
        payload_schema="customer BIGINT, profile STRUCT<tier: STRING>",
        where="error LIKE 'TimeoutError%' AND data.profile.tier = 'gold'",
        max_replays=3,
    )
    analyse() >> replay


spark_replay()
