"""Many producers for one queue. Each waits in the triggerer until the queue is short enough."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, task, task_group

from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator
from airflow_provider_chasqui.sensors.depth import ChasquiQueueDepthSensor

with DAG(
    "chasqui_fan_out_with_back_pressure",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    tags=["chasqui", "example"],
):

    @task
    def list_regions() -> list[list[dict[str, object]]]:
        regions = ("north", "east", "south")
        return [[{"region": region, "row": row} for row in range(200)] for region in regions]

    @task_group
    def region(rows: list[dict[str, object]]) -> None:
        ChasquiQueueDepthSensor(
            task_id="wait_for_depth",
            queue_name="rows",
            max_waiting=1000,
            max_dead=100,
            deferrable=True,
            poke_interval=2,
        ) >> ChasquiEnqueueOperator(
            task_id="send",
            queue_name="rows",
            payloads=rows,
            wait_for_completion=True,
            deferrable=True,
        )

    region.expand(rows=list_regions())
