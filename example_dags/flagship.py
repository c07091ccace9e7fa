"""The whole story: Spark ships jobs, workers run them, some die, and those worth it are replayed.

`make story` runs it, on parts that it starts itself. Connections: `spark_default` and
`chasqui_default`.
Workers, from this folder: `chasqui worker flagship_handlers:handlers --queue parcels`.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from airflow_provider_chasqui.operators.spark_replay import ChasquiSparkReplayOperator
from airflow_provider_chasqui.operators.spark_submit import ChasquiSparkSubmitOperator
from airflow_provider_chasqui.sensors.batch import ChasquiBatchSensor

QUEUE = "parcels"
PARCELS = """
    SELECT id AS parcel, concat('street ', id % 997) AS address, 1 + id % 30 AS weight
    FROM range({{ params.parcels }})
"""


@dag(start_date=datetime(2026, 1, 1), schedule=None, catchup=False, params={"parcels": 10_000})
def flagship() -> None:
    ship = ChasquiSparkSubmitOperator(
        task_id="ship",
        queue_name=QUEUE,
        source_sql=PARCELS,
        job_options={"name": "deliver"},
    )
    first_round = ChasquiBatchSensor(
        task_id="first_round", batch=ship.output, max_failed_ratio=0.1, progress_interval=2
    )

    @task
    def mend() -> str:
        """The lift that could not carry heavy parcels is repaired."""
        Path(os.environ["LIFT_IS_MENDED"]).touch()
        return "the lift carries 30 kg again"

    replay = ChasquiSparkReplayOperator(
        task_id="replay",
        queue_name=QUEUE,
        payload_schema="parcel BIGINT, address STRING, weight BIGINT",
        where="reason = 'unrecoverable' AND data.weight > 29",
    )
    second_round = ChasquiBatchSensor(
        task_id="second_round", batch=ship.output, progress_interval=2
    )

    @task
    def summarise(shipped: dict[str, Any], first: Any, again: Any, second: Any) -> dict[str, Any]:
        return {
            "shipped": shipped["total"],
            "delivered at first": first["done"],
            "dead letters": first["dead"],
            "replayed": again["moved"],
            "delivered in the end": second["done"],
        }

    first_round >> mend() >> replay >> second_round
    summarise(ship.output, first_round.output, replay.output, second_round.output)


flagship()
