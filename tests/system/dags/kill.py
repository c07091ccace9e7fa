"""DAGs whose enqueueing tasks are killed, timed out or cleared."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator

START = datetime(2026, 1, 1)
QUEUE = "{{ dag_run.conf.queue }}"
JOBS = list(range(50))
COMMON: dict[str, Any] = {
    "queue_name": QUEUE,
    "batch": JOBS,
    "wait_for_completion": True,
    "retries": 2,
    "retry_delay": timedelta(seconds=1),
}


class EvictedWhileWaiting(ChasquiEnqueueOperator):
    """Operator whose first try gets SIGTERM while it waits, and SIGKILL two seconds later."""

    def execute(self, context: Any) -> Any:
        if context["ti"].try_number == 1:
            threading.Thread(target=self._evict, daemon=True).start()
        return super().execute(context)

    def _evict(self) -> None:
        while self._handle is None or self._handle.total is None:
            time.sleep(0.1)
        time.sleep(2)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(2)
        os.kill(os.getpid(), signal.SIGKILL)


for cancel in (False, True):
    suffix = "_cancel" if cancel else ""
    with DAG(f"kill_evicted{suffix}", schedule=None, start_date=START):
        EvictedWhileWaiting(task_id="send", deferrable=False, cancel_on_kill=cancel, **COMMON)

    with DAG(f"kill_timeout{suffix}", schedule=None, start_date=START):
        ChasquiEnqueueOperator(
            task_id="send",
            deferrable=False,
            execution_timeout=timedelta(seconds=8),
            cancel_on_kill=cancel,
            **COMMON,
        )

with DAG("kill_deferred", schedule=None, start_date=START):
    ChasquiEnqueueOperator(task_id="send", deferrable=True, cancel_on_kill=True, **COMMON)


def sleep_beyond_overtime(context: Any) -> None:
    time.sleep(15)


with DAG("kill_after_success", schedule=None, start_date=START):

    @task.chasqui(
        queue_name=QUEUE,
        returns="batch",
        cancel_on_kill=True,
        on_success_callback=sleep_beyond_overtime,
    )
    def send():
        for n in range(1_600_000):
            yield {"id": n, "name": f"name {n}", "city": "Cusco", "amount": n * 1.5}

    send()
