"""A DAG that enqueues a batch and a single job, and has a task that enqueues nothing."""

from __future__ import annotations

from datetime import datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator

with DAG("newsletter", start_date=datetime(2026, 1, 1), schedule=None):
    send = ChasquiEnqueueOperator(
        task_id="send",
        queue_name="newsletter",
        batch=[{"to": f"reader{number}@example.org"} for number in range(40)],
        job_name="newsletter",
        chasqui_conn_id="native",
    )
    report = ChasquiEnqueueOperator(
        task_id="report",
        queue_name="newsletter",
        payload={"kind": "report"},
        job_id="report-1",
        chasqui_conn_id="native",
    )
    send >> report >> EmptyOperator(task_id="elsewhere")
