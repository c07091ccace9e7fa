"""Run all jobs of a queue inside a scheduled task, without a separate worker."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_provider_chasqui.operators.consume import ChasquiConsumeOperator


async def archive(job: Any) -> None:
    """Process one job. A handler may run twice, so it must be idempotent."""
    assert job.payload is not None


with DAG(
    "chasqui_consume_in_a_task",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    tags=["chasqui", "example"],
):
    ChasquiConsumeOperator(
        task_id="archive",
        queue_name="archive",
        handler=archive,
        max_duration=timedelta(minutes=30),
    )
