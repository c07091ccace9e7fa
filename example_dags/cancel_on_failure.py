"""Cancel the unfinished jobs of a batch if another task of the run fails."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from airflow.sdk import DAG, task

from airflow_provider_chasqui.operators.cancel import ChasquiCancelOperator

with DAG(
    "chasqui_cancel_on_failure",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    tags=["chasqui", "example"],
):

    @task.chasqui(queue_name="rows", returns="batch", batch_id="import-{{ run_id }}")
    def import_rows() -> Iterator[dict[str, int]]:
        for number in range(1000):
            yield {"row": number}

    @task
    def check_source() -> None:
        raise ValueError("the source is incomplete")

    handle = import_rows()
    cancel = ChasquiCancelOperator(task_id="cancel", batch=handle, trigger_rule="one_failed")
    check_source() >> cancel
