"""DAGs of which Airflow's statistics hear."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_chasqui.operators.dlq import ChasquiReplayDlqOperator
from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator
from airflow_provider_chasqui.sensors.batch import ChasquiBatchSensor

START = datetime(2026, 1, 1)
QUEUE = "{{ dag_run.conf.queue }}"
# A busy scheduler takes a task that comes back from a very short deferral for a lost one.
AGAIN = {"retries": 2, "retry_delay": timedelta(seconds=1)}

with DAG("told_in_numbers", schedule=None, start_date=START, default_args=AGAIN):
    sent = ChasquiEnqueueOperator(
        task_id="send", queue_name=QUEUE, batch=list(range(20)), job_retry=1
    )
    wait = ChasquiBatchSensor(
        task_id="wait", batch=sent.output, deferrable=True, timeout=300, max_failed=3
    )
    wait >> ChasquiReplayDlqOperator(task_id="replay", queue_name=QUEUE)

with DAG("waits_for_nothing", schedule=None, start_date=START):
    ChasquiBatchSensor(
        task_id="wait", batch="never-sent", queue_name=QUEUE, deferrable=True, timeout=300
    )
