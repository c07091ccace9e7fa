"""DAGs with sensors for tests/provider/test_sensors.py."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_chasqui.sensors.batch import ChasquiBatchSensor
from airflow_provider_chasqui.sensors.depth import ChasquiQueueDepthSensor
from airflow_provider_chasqui.sensors.job import ChasquiJobSensor

QUEUE = "{{ dag_run.conf['queue'] }}"
MODES: dict[str, dict[str, Any]] = {
    "deferred": {"deferrable": True},
    "poke": {"deferrable": False},
    "reschedule": {"deferrable": False, "mode": "reschedule", "poke_interval": 0.2},
}


@task
def handle_of_nothing(queue_name: str) -> dict[str, Any]:
    return {"queue_name": queue_name, "batch_id": "nothing", "total": 3}


@task
def id_of_nothing() -> str:
    return "batch:nothing:0:0"


for mode, options in MODES.items():
    common = {"queue_name": QUEUE, **options}
    with DAG(f"later_{mode}", schedule=None):
        ChasquiBatchSensor(task_id="batch", batch="later", timeout=30, **common)
        ChasquiJobSensor(task_id="job", job_id="later", timeout=30, **common)
    with DAG(f"never_{mode}", schedule=None):
        ChasquiBatchSensor(task_id="batch", batch="never", timeout=1, **common)
        ChasquiJobSensor(task_id="job", job_id="never", timeout=1, **common)
        ChasquiBatchSensor(
            task_id="never_fail", batch="never", timeout=1, never_fail=True, **common
        )
        ChasquiBatchSensor(task_id="soft_fail", batch="never", timeout=1, soft_fail=True, **common)
    with DAG(f"broken_handles_{mode}", schedule=None):
        ChasquiBatchSensor(task_id="batch", batch=handle_of_nothing(QUEUE), timeout=20, **options)
        ChasquiJobSensor(task_id="job", job_id=id_of_nothing(), timeout=20, **common)  # type: ignore[arg-type]
    with DAG(f"dead_jobs_{mode}", schedule=None):
        ChasquiBatchSensor(
            task_id="strict", batch="dying", max_failed="{{ 1 }}", timeout=20, **common
        )
        ChasquiBatchSensor(
            task_id="tolerant", batch="dying", max_failed_ratio="{{ 0.5 }}", timeout=20, **common
        )
        ChasquiBatchSensor(
            task_id="never_fail", batch="dying", never_fail=True, timeout=20, **common
        )
    with DAG(f"connection_queue_{mode}", schedule=None):
        ChasquiBatchSensor(task_id="batch", batch="done", timeout=20, **options)
        ChasquiJobSensor(task_id="job", job_id="batch:done:0:0", timeout=20, **options)
        depth_options = {"poke_interval": 0.2, **options}
        ChasquiQueueDepthSensor(task_id="depth", max_waiting=0, timeout=20, **depth_options)

    with DAG(f"job_counts_{mode}", schedule=None):
        for index, name in enumerate(("with", "without", "dead")):
            ChasquiJobSensor(task_id=name, job_id=f"batch:jobs:0:{index}", timeout=20, **common)

    replaying = {"on_retry": "replay", "retries": 1, "retry_delay": 0.0, "timeout": 30, **common}
    with DAG(f"replaying_job_{mode}", schedule=None):
        ChasquiJobSensor(task_id="wait", job_id="batch:dying:0:1", **replaying)
    with DAG(f"replaying_batch_{mode}", schedule=None):
        ChasquiBatchSensor(task_id="wait", batch="dying", **replaying)
    with DAG(f"not_replaying_{mode}", schedule=None):
        retrying = {"retries": 3, "timeout": 20, **common}
        ChasquiJobSensor(task_id="job", job_id="batch:dying:0:1", **retrying)
        ChasquiBatchSensor(task_id="batch", batch="dying", **retrying)
