"""Spark selects customers, workers send each of them a newsletter, and the DAG waits for all.

Connections: `spark_default` (the Spark master) and `chasqui_default` (the Redis server). Workers:
`chasqui worker` with a handler for jobs named "send-newsletter".
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow.sdk import dag, task

from airflow_provider_chasqui.operators.spark_submit import ChasquiSparkSubmitOperator
from airflow_provider_chasqui.sensors.batch import ChasquiBatchSensor

CUSTOMERS = """
    SELECT id AS customer, concat('customer-', id, '@example.org') AS email,
           named_struct('tier', IF(id % 10 = 0, 'gold', 'blue')) AS profile
    FROM range({{ params.customers }})
    WHERE id % 2 = 0
"""


@dag(start_date=datetime(2026, 1, 1), schedule=None, catchup=False, params={"customers": 2000})
def spark_write() -> None:
    write = ChasquiSparkSubmitOperator(
        task_id="write",
        queue_name="newsletters",
        source_sql=CUSTOMERS,
        write_options={"jobName": "send-newsletter", "retry": "5"},
    )
    wait = ChasquiBatchSensor(task_id="wait", batch=write.output, max_failed_ratio=0.01)

    @task
    def summarise(handle: dict[str, Any], counts: dict[str, Any]) -> str:
        return f"{counts['done']} of {handle['total']} newsletters were sent"

    summarise(write.output, wait.output)


spark_write()
