"""The demo: Spark writes 10 000 jobs, workers run them, some die, and the retryable are replayed.

`make demo` runs it with its own servers, and `make up` starts an Airflow that contains it.
Connections: `spark_default` and `chasqui_default`.
Workers, started in this folder: `chasqui worker example_handlers:handlers --queue deliveries`.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from airflow_provider_chasqui.operators.spark_submit import ChasquiSparkSubmitOperator
from airflow_provider_chasqui.sensors.batch import ChasquiBatchSensor

QUEUE = "deliveries"
HOME = Path(os.environ.get("FLAGSHIP_HOME", tempfile.gettempdir()))
WEIGHT_LIMIT_RAISED = HOME / "weight-limit-raised"  # a flag that the handler reads
PARCELS = """
    SELECT parcel, first(street) AS street, sum(kg) AS kg
    FROM json.`{{ ti.xcom_pull(task_ids='collect') }}`
    GROUP BY parcel
"""


@dag(
    start_date=datetime(2026, 1, 1),
    schedule=None,
    catchup=False,
    params={"parcels": 10_000},
    # Retries are safe, because no job is enqueued twice.
    default_args={"retries": 2, "retry_delay": timedelta(seconds=2)},
    tags=["chasqui", "example", "spark"],
)
def flagship() -> None:
    @task
    def collect(params: Any = None) -> str:
        """Write the input, one JSON line per purchased item."""
        rng = random.Random(7)
        WEIGHT_LIMIT_RAISED.unlink(missing_ok=True)
        file = HOME / "items.json"
        with file.open("w") as lines:
            for parcel in range(params["parcels"]):
                street = f"{rng.randrange(1, 99)} Inca Road" if rng.random() > 0.003 else None
                for _ in range(rng.randrange(1, 6)):
                    item = {"parcel": parcel, "street": street, "kg": rng.randrange(1, 9)}
                    print(json.dumps(item), file=lines)
        return str(file)

    write = ChasquiSparkSubmitOperator(
        task_id="write",
        queue_name=QUEUE,
        source_sql=PARCELS,
        write_options={"jobName": "deliver", "retry": "3"},
        on_clear="reattach",  # a clear finds the jobs; by default it cancels them and writes again
    )
    first_round = ChasquiBatchSensor(
        task_id="first_round",
        batch=write.output,
        max_failed_ratio=0.1,
        deferrable=True,
        progress_interval=2,
    )

    @task.pyspark(conn_id="spark_default")
    def repair(spark: Any) -> dict[str, int]:
        """Count the dead letters by error, fix one cause, and replay the jobs that it affected."""
        from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
        from airflow_provider_chasqui.spark.source import register

        register(spark, ChasquiHook().settings.target)
        reader = spark.read.format("chasqui").option("queueName", QUEUE).option("view", "dlq")
        dead_letters = reader.load().cache()
        rows = dead_letters.groupBy("error").count().collect()
        WEIGHT_LIMIT_RAISED.touch()
        retryable = dead_letters.where("reason = 'unrecoverable' AND error LIKE '%too heavy%'")
        writer = retryable.write.format("chasqui").option("queueName", QUEUE)
        writer.option("action", "replay").mode("append").save()
        return {row["error"]: row["count"] for row in rows}

    second_round = ChasquiBatchSensor(
        task_id="second_round",
        batch=write.output,
        max_failed_ratio=0.01,
        deferrable=True,
        progress_interval=2,
    )
    collect() >> write >> first_round >> repair() >> second_round


flagship()
