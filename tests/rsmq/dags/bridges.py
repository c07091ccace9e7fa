"""DAGs that move messages both ways and wait for one."""

from __future__ import annotations

from airflow.sdk import DAG, Param, task

from airflow_provider_chasqui.operators.rsmq import ChasquiToRsmqOperator, RsmqToChasquiOperator
from airflow_provider_chasqui.sensors.rsmq import RsmqSensor

PARAMS = {"queue": Param("q", type="string"), "namespace": Param("rsmq", type="string")}
PLACE = {"queue_name": "{{ params.queue }}", "namespace": "{{ params.namespace }}"}

with DAG("rsmq_to_chasqui", schedule=None, params=PARAMS):
    RsmqToChasquiOperator(
        task_id="move",
        rsmq_queue_name="q",
        job_name="mail",
        json_payload=True,
        max_messages=5,
        **PLACE,
    )

with DAG("chasqui_to_rsmq", schedule=None, params=PARAMS):
    ChasquiToRsmqOperator(task_id="move", rsmq_queue_name="q", **PLACE)

for deferrable in (True, False):
    with DAG(f"rsmq_wait_{'deferred' if deferrable else 'here'}", schedule=None, params=PARAMS):
        wait = RsmqSensor(
            task_id="wait",
            rsmq_queue_name="q",
            namespace="{{ params.namespace }}",
            max_messages=3,
            deferrable=deferrable,
            poke_interval=30 if deferrable else 0.2,
            timeout=60,
        )

        @task
        def handle(messages: list[dict[str, object]]) -> list[object]:
            return [message["message"] for message in messages]

        handle(wait.output)
