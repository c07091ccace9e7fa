"""DAGs of test_enqueue.py. The tests pass parameters in the conf of the run."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, task

from airflow_provider_chasqui.assets.chasqui import create_asset
from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator
from airflow_provider_chasqui.sensors.batch import ChasquiBatchSensor
from airflow_provider_chasqui.sensors.depth import ChasquiQueueDepthSensor
from airflow_provider_chasqui.sensors.job import ChasquiJobSensor

START = datetime(2026, 1, 1)
QUEUE = "{{ dag_run.conf.queue }}"


def dag(dag_id: str, **options: object) -> DAG:
    return DAG(dag_id, schedule=None, start_date=START, **options)


with dag("one", render_template_as_native_obj=True):
    ChasquiEnqueueOperator(
        task_id="send",
        queue_name=QUEUE,
        payload={"to": "{{ dag_run.conf.to }}", "day": "{{ ds }}", "deep": [{"n": 1}]},
        job_name="welcome",
    )

for deferrable in (True, False):
    with dag(f"wait_{'deferred' if deferrable else 'in_process'}"):
        sent = ChasquiEnqueueOperator(
            task_id="send",
            queue_name=QUEUE,
            payload={"n": "{{ dag_run.conf.n }}"},
            wait_for_completion=True,
            wait_timeout=30,
            deferrable=deferrable,
            job_retry={"max_attempts": 2, "backoff": {"kind": "fixed", "delay": "10ms"}},
        )

        @task
        def use(result: object) -> object:
            return {"used": result}

        use(sent.output["result"])

    with dag(f"many_{'deferred' if deferrable else 'in_process'}"):
        ChasquiEnqueueOperator(
            task_id="send",
            queue_name=QUEUE,
            payloads=[1, 2, 3],
            wait_for_completion=True,
            wait_timeout=30,
            deferrable=deferrable,
            max_failed=1,
        )

    with dag(f"batch_{'deferred' if deferrable else 'in_process'}"):
        handle = ChasquiEnqueueOperator(
            task_id="send", queue_name=QUEUE, batch=list(range(500)), job_retry=1
        )
        ChasquiBatchSensor(
            task_id="wait",
            batch=handle.output,
            max_failed=None,
            max_failed_ratio=0.01,
            timeout=30,
            deferrable=deferrable,
        )

    with dag(f"sensors_{'deferred' if deferrable else 'in_process'}"):
        ChasquiJobSensor(
            task_id="job",
            queue_name=QUEUE,
            job_id="{{ dag_run.conf.job }}",
            timeout=30,
            deferrable=deferrable,
        ) >> ChasquiQueueDepthSensor(
            task_id="depth",
            queue_name=QUEUE,
            max_waiting=0,
            max_dead=0,
            poke_interval="100ms",
            timeout=30,
            deferrable=deferrable,
        )

with dag("rescheduled"):
    ChasquiJobSensor(
        task_id="job", queue_name=QUEUE, job_id="{{ dag_run.conf.job }}", mode="reschedule"
    )

for mode in ("deferred", "in_process", "rescheduled"):
    with dag(f"dead_job_sensors_{mode}"):
        for soft in (False, True):
            ChasquiJobSensor(
                task_id="soft" if soft else "hard",
                queue_name=QUEUE,
                job_id="{{ dag_run.conf.job }}",
                soft_fail=soft,
                deferrable=mode == "deferred",
                mode="reschedule" if mode == "rescheduled" else "poke",
                timeout=30,
            )

with dag("short_timeout"):
    ChasquiEnqueueOperator(
        task_id="send",
        queue_name=QUEUE,
        payload=1,
        wait_for_completion=True,
        wait_timeout=0.5,
        deferrable=False,
    )
    ChasquiQueueDepthSensor(
        task_id="sense",
        queue_name=QUEUE,
        max_waiting=-1,
        timeout=0.5,
        soft_fail=True,
        deferrable=False,
    )

with dag("with_outlet"):
    ChasquiEnqueueOperator(
        task_id="send",
        queue_name=QUEUE,
        batch=[1, 2, 3],
        outlets=[create_asset(queue_name="emails", host="redis")],
    )

with dag("explicit_job_id"):
    ChasquiEnqueueOperator(
        task_id="send",
        queue_name=QUEUE,
        payload=1,
        job_id="invoice-{{ dag_run.conf.n }}",
        wait_for_completion=True,
        wait_timeout=30,
        deferrable=True,
    )

with dag("from_file", template_searchpath=[__file__.rsplit("/", 1)[0]]):
    ChasquiEnqueueOperator(task_id="send", queue_name=QUEUE, payload="payload.json")

with dag("mapped"):

    @task
    def rows() -> list[dict[str, int]]:
        return [{"row": n} for n in range(5)]

    ChasquiEnqueueOperator.partial(
        task_id="send", queue_name=QUEUE, wait_for_completion=True, wait_timeout=30, deferrable=True
    ).expand(payload=rows())

with dag("delayed"):
    ChasquiEnqueueOperator(
        task_id="send", queue_name=QUEUE, payload=1, delay="1h", job_name="later"
    )

with dag("invalid_argument"):
    ChasquiEnqueueOperator(
        task_id="send", queue_name=QUEUE, payload=1, delay=-5, retries=3, retry_delay=0.0
    )

for on_retry in ("reattach", "replay"):
    with dag(f"retried_{on_retry}", render_template_as_native_obj=True):
        ChasquiEnqueueOperator(
            task_id="send",
            queue_name=QUEUE,
            payloads="{{ dag_run.conf.payloads }}",
            on_retry=on_retry,
            wait_for_completion=True,
            wait_timeout=30,
            deferrable=True,
        )

with dag("retried_other", render_template_as_native_obj=True):
    ChasquiEnqueueOperator(task_id="send", queue_name=QUEUE, payloads="{{ dag_run.conf.payloads }}")

with dag("decorated"):

    @task.chasqui(queue_name=QUEUE, returns="batch", job_name="row")
    def produce(count: int):
        for n in range(count):
            yield {"n": n}

    @task.chasqui(queue_name=QUEUE, wait_for_completion=True, wait_timeout=30, deferrable=True)
    def one(handle: dict[str, object]) -> object:
        return {"of": handle["total"]}

    one(produce(7))
