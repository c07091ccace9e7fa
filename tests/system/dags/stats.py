"""DAGs whose metrics are tested."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_chasqui.operators.dlq import ChasquiReplayDlqOperator
from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator
from airflow_provider_chasqui.sensors.batch import ChasquiBatchSensor

START = datetime(2026, 1, 1)
QUEUE = "{{ dag_run.conf.queue }}"

with DAG("replay_with_metrics", schedule=None, start_date=START):
    batch = ChasquiEnqueueOperator(
        task_id="send", queue_name=QUEUE, batch=list(range(20)), job_retry=1
    )
    wait = ChasquiBatchSensor(
        task_id="wait", batch=batch.output, deferrable=True, timeout=300, max_failed=3
    )
    wait >> ChasquiReplayDlqOperator(task_id="replay", queue_name=QUEUE)

with DAG("wait_for_unreadable_batch", schedule=None, start_date=START):
    ChasquiBatchSensor(
        task_id="wait", batch="unreadable", queue_name=QUEUE, deferrable=True, timeout=300
    )
