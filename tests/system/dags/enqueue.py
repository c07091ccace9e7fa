"""DAGs that enqueue jobs and wait for them."""

from __future__ import annotations

import os
import signal
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator
from airflow_provider_chasqui.sensors.batch import ChasquiBatchSensor
from airflow_provider_chasqui.sensors.job import ChasquiJobSensor

START = datetime(2026, 1, 1)
QUEUE = "{{ dag_run.conf.queue }}"


class KilledAfterSending(ChasquiEnqueueOperator):
    """Operator whose first try is killed after the jobs were sent and before it returns."""

    def execute(self, context: Any) -> Any:
        result = super().execute(context)
        if context["ti"].try_number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


with DAG("await_one", schedule=None, start_date=START):
    sent = ChasquiEnqueueOperator(
        task_id="send",
        queue_name=QUEUE,
        payload={"n": 20},
        wait_for_completion=True,
        deferrable=True,
        wait_timeout=300,
    )

    @task
    def use(result: Any) -> Any:
        return result["n"] + 1

    use(sent.output["result"])

with DAG("await_thousand", schedule=None, start_date=START):
    handle = ChasquiEnqueueOperator(task_id="send", queue_name=QUEUE, batch=list(range(1000)))
    ChasquiBatchSensor(
        task_id="wait", batch=handle.output, deferrable=True, timeout=300, progress_interval=0.5
    )

with DAG("start_from_trigger", schedule=None, start_date=START):
    in_triggerer: dict[str, Any] = {
        "queue_name": QUEUE,
        "deferrable": True,
        "start_from_trigger": True,
    }
    ChasquiJobSensor(task_id="job", job_id="{{ dag_run.conf.job }}", timeout=200, **in_triggerer)
    ChasquiBatchSensor(task_id="never", batch="never", timeout=5, **in_triggerer)

with DAG("killed_task", schedule=None, start_date=START):
    KilledAfterSending(
        task_id="send",
        queue_name=QUEUE,
        payloads=[1, 2, 3],
        retries=1,
        retry_delay=timedelta(seconds=1),
    )

with DAG("cleared", schedule=None, start_date=START):
    for task_id, options in {
        "resend": {},
        "reattach": {"on_clear": "reattach"},
        "resubmit": {"on_retry": "resubmit"},
    }.items():
        ChasquiEnqueueOperator(task_id=task_id, queue_name=QUEUE, payload=task_id, **options)

with DAG("failed_by_user", schedule=None, start_date=START):
    for deferrable in (True, False):
        ChasquiEnqueueOperator(
            task_id="deferred" if deferrable else "in_process",
            queue_name=QUEUE,
            payloads=[1, 2],
            delay=timedelta(hours=1),
            wait_for_completion=True,
            deferrable=deferrable,
            cancel_on_kill=True,
        )
