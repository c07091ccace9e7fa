"""Enqueue one job, wait for it without a worker slot, and pass its result to the next task.

This DAG requires a worker that stores results:
`chasqui worker example_handlers:handlers --queue thumbnails --store-results`
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, task

from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator

with DAG(
    "chasqui_enqueue_and_wait",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    tags=["chasqui", "example"],
):
    thumbnail = ChasquiEnqueueOperator(
        task_id="make_thumbnail",
        queue_name="thumbnails",
        job_name="thumbnail",
        payload={"image": "cat.png", "width": 320, "run": "{{ run_id }}"},
        job_retry={
            "max_attempts": 5,
            "backoff": {"kind": "exponential", "delay": "500ms", "max_delay": "1m"},
        },
        wait_for_completion=True,
        deferrable=True,
        wait_timeout=timedelta(minutes=10),
    )

    @task
    def publish(result: dict[str, object]) -> str:
        return f"published {result['file']}"

    publish(thumbnail.output["result"])
