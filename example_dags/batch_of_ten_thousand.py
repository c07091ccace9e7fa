"""Enqueue ten thousand e-mails as one batch, and wait for them in one deferred task."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from airflow.sdk import DAG, task

from airflow_provider_chasqui.sensors.batch import ChasquiBatchSensor

with DAG(
    "chasqui_batch_of_ten_thousand",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    tags=["chasqui", "example"],
):

    @task.chasqui(queue_name="emails", job_name="welcome", returns="batch", job_retry=3)
    def write_emails() -> Iterator[dict[str, object]]:
        for number in range(10_000):
            yield {"to": f"user{number}@example.org", "template": "welcome"}

    finished = ChasquiBatchSensor(
        task_id="wait_for_all",
        batch=write_emails(),
        max_failed=None,
        max_failed_ratio=0.01,
        deferrable=True,
        progress_interval="5s",
        timeout=timedelta(hours=1).total_seconds(),
    )

    @task
    def report(counts: dict[str, object]) -> str:
        return f"{counts['done']} of {counts['total']} sent, {counts['dead']} dead"

    report(finished.output)
