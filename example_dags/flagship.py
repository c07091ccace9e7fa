"""The whole story: Spark ships jobs, workers run them, some die, and those worth it are replayed.

`make demo` runs it on parts that it starts itself; `make up` leaves it at hand in Airflow.
Connections: `spark_default` and `chasqui_default`.
Workers, from this folder: `chasqui worker example_handlers:handlers --queue deliveries`.
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
    # Nothing is sent twice, so a retry costs nothing.
    default_args={"retries": 2, "retry_delay": timedelta(seconds=2)},
    tags=["chasqui", "example", "spark"],
)
def flagship() -> None:
    @task
    def collect(params: Any = None) -> str:
        """A data set as a shop might hand it over: one JSON line for each thing that was bought."""
        dice = random.Random(7)
        HOME.joinpath("lift-is-mended").unlink(missing_ok=True)
        file = HOME / "bought.json"
        with file.open("w") as lines:
            for parcel in range(params["parcels"]):
                street = f"{dice.randrange(1, 99)} Inca Road" if dice.random() > 0.003 else None
                for _ in range(dice.randrange(1, 6)):
                    bought = {"parcel": parcel, "street": street, "kg": dice.randrange(1, 9)}
                    print(json.dumps(bought), file=lines)
        return str(file)

    ship = ChasquiSparkSubmitOperator(
        task_id="ship",
        queue_name=QUEUE,
        source_sql=PARCELS,
        write_options={"jobName": "deliver", "retry": "3"},
    )
    first_round = ChasquiBatchSensor(
        task_id="first_round",
        batch=ship.output,
        max_failed_ratio=0.1,
        deferrable=True,
        progress_interval=2,
    )

    @task.pyspark(conn_id="spark_default")
    def repair(spark: Any) -> dict[str, int]:
        """Ask the dead letters what they died of, mend it, and replay those that it had killed."""
        from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
        from airflow_provider_chasqui.spark.source import register

        register(spark, ChasquiHook().settings.target)
        letters = spark.read.format("chasqui").option("queueName", QUEUE).option("view", "dlq")
        dead = letters.load().cache()
        counts = {row["error"]: row["count"] for row in dead.groupBy("error").count().collect()}
        HOME.joinpath("lift-is-mended").touch()
        worth_it = dead.where("reason = 'unrecoverable' AND error LIKE '%lift%'")
        back = (
            worth_it.write.format("chasqui").option("queueName", QUEUE).option("action", "replay")
        )
        back.mode("append").save()
        return counts

    second_round = ChasquiBatchSensor(
        task_id="second_round",
        batch=ship.output,
        max_failed_ratio=0.01,
        deferrable=True,
        progress_interval=2,
    )
    collect() >> ship >> first_round >> repair() >> second_round


flagship()
